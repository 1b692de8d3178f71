"""The built-in jobs and measurements. They import the rooms of `runner`; nothing there imports them."""
