"""What the model sees: the four sections of a context, how they are rendered, measured, recorded and rendered again."""
