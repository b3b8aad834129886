//! Decisions in real kernels: pods behind a router, and what their connections do while decisions
//! change. The deltas are made by hand, except in `documents`, `hosts`, `names` and `truth`.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

mod anew;
mod documents;
mod foreign_tables;
mod hosts;
mod kernel;
mod log;
mod names;
mod random;
mod refusals;
mod sources;
mod traffic;
mod truth;
mod upgrade;
mod world;
