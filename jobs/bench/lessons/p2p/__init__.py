"""`bench memory p2p`: methods of moving bytes between the memories of ranks."""
