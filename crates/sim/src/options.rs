//! What kind of run is wanted.

use std::fmt;

/// Who writes into the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// Our allocator on every node.
    Ours,
    /// Ours on some nodes, models of Go releases on others; a node may change sides when it restarts.
    Mixed,
}

/// What the store promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Several steps in one all-or-nothing commit, as etcd and the embedded engine do. Go peers write one by one all the same.
    Atomic,
    /// One by one, as Kubernetes does.
    NonAtomic,
}

/// The size and kind of a run; everything else is decided by the seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Who writes.
    pub writers: Writers,
    /// What the store promises.
    pub mode: Mode,
    /// How many nodes; at least 2 for `Mixed`.
    pub nodes: usize,
    /// How many requests a node works on at the same time.
    pub lanes: usize,
    /// How many operations each of these lanes carries out.
    pub ops: usize,
}

// === impl Options ===

impl Options {
    /// The four kinds of run, in the usual size.
    pub fn kinds() -> [Self; 4] {
        [
            (Writers::Ours, Mode::Atomic),
            (Writers::Ours, Mode::NonAtomic),
            (Writers::Mixed, Mode::Atomic),
            (Writers::Mixed, Mode::NonAtomic),
        ]
        .map(|(writers, mode)| Self { writers, mode, ..Self::default() })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { writers: Writers::Ours, mode: Mode::Atomic, nodes: 4, lanes: 2, ops: 14 }
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writers = match self.writers {
            Writers::Ours => "ours",
            Writers::Mixed => "mixed",
        };
        let mode = match self.mode {
            Mode::Atomic => "atomic",
            Mode::NonAtomic => "one-by-one",
        };
        write!(f, "{writers} {mode}")
    }
}
