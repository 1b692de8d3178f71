"""`bench memory p2p`: methods to move bytes between ranks."""
