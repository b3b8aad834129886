//! Deterministic simulation of a cluster that allocates addresses: many nodes, one store, one seed
//! (docs/testing.md).
//!
//! Nodes run our allocator or a model of the Go one (`go`) over the simulated store with its
//! faults; a single-threaded executor decides by the seed which task runs next, and kills nodes
//! between any two steps. After every write the stored state is compared with the answers that
//! runtimes got. A failing seed is reduced and reported with a trace. Called by `cargo xtask sim`,
//! `cargo xtask soak` and this crate's tests.

mod check;
mod cluster;
mod executor;
mod failure;
pub mod go;
mod lane;
mod options;
mod plan;
mod process;
mod shrink;
mod stats;
mod watcher;
mod wire;
mod world;

pub use failure::{Failure, Violation, ViolationKind};
pub use options::{Mode, Options, Writers};
pub use stats::Stats;

/// Runs one seed. A failure is already reduced, and has the trace of the smaller run.
pub fn run(seed: u64, options: &Options) -> Result<Stats, Box<Failure>> {
    let plan = plan::Plan::of(seed, options);
    match cluster::play(&plan, false) {
        Ok(stats) => Ok(stats),
        Err(end) => Err(Box::new(shrink::explain(seed, *options, &plan, end.violation))),
    }
}

#[cfg(test)]
mod tests;
