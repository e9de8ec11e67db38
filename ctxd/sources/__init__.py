"""The outside things that sourced objects track."""
