//! The CPU backend: kernels, pools and the executor.
