"""Integration with a service manager: socket activation, notifications, watchdog."""
