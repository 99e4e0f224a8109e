"""Moving a store from one provider to another."""
