"""Assembly of contexts: four sections, rendered, measured, recorded, and rendered again."""
