//! Whole-program tests: real executables in real namespaces, one topology a file.

mod bad_input;
mod demo;
mod host;
mod node;
mod restart;
mod storm;
