"""Pages and a JSON API over stores, for a browser on this machine."""
