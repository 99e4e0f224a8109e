"""The methods of a SessionDB by subject: thin, without SQL, each class one part of the contract."""
