"""Migration of a store from one provider to another."""
