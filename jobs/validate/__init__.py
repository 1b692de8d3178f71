"""`meshrun validate`: a verdict on the interconnect, with the culprit's name."""
