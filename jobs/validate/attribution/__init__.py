"""From slow measurements to the part that explains them."""
