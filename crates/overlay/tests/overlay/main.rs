//! Tests of the overlay from outside: pure ones, a model kernel, and the real kernel.

mod convergence;
mod desired;
mod model;
mod scene;
