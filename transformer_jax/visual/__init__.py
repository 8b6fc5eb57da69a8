"""Pictures and pages, all of which can be made without a display."""
