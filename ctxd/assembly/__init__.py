"""Assembly of contexts in two layouts: rendered, measured, recorded, and rendered again."""
