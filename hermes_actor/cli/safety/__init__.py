"""Commands that keep the store safe."""
