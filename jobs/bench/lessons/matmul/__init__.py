"""`bench memory matmul`: matrix products, from naive kernels to the vendor's library."""
