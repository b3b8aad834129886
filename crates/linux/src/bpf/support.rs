//! What of the fast path's needs the running kernel has, found by trying: version numbers say
//! nothing about what a distribution adds or leaves out.

use std::fmt;

use super::{BpfError, Map, MapDefinition, MapKind, Program, Way};

/// Something that the fast path uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Programs for packets, and that this process may load them.
    Programs,
    /// A map of this kind, with entries that are written and read by few calls.
    Maps(MapKind),
}

/// What is missing, and why.
#[derive(Debug)]
pub struct Support(Vec<(Need, BpfError)>);

/// A program that passes every packet: `r0 = 0; exit`.
const PASS: [u64; 2] = [0xb7, 0x95];
/// `BPF_F_NO_PREALLOC`, which a trie must have.
const NO_PREALLOC: u32 = 1;

// === impl Support ===

impl Support {
    /// Tries everything. Nothing of it stays.
    pub fn probe() -> Self {
        let way = Way::probe();
        let is_used = |kind: &MapKind| *kind != MapKind::Programs || way == Way::Clsact;
        let maps = MapKind::ALL.into_iter().filter(is_used).map(|kind| (Need::Maps(kind), try_map(kind)));
        let programs = (Need::Programs, Program::from_instructions("probe", &PASS).map(drop));
        let all = std::iter::once(programs).chain(maps);
        Self(all.filter_map(|(need, tried)| tried.err().map(|why| (need, why))).collect())
    }

    /// Why something is missing; `None` if it is there.
    pub fn lacks(&self, need: Need) -> Option<&BpfError> {
        self.0.iter().find(|(missing, _)| *missing == need).map(|(_, why)| why)
    }

    /// Everything that is missing.
    pub fn missing(&self) -> &[(Need, BpfError)] {
        &self.0
    }
}

/// Also tries batches, which came to each kind in a release of its own.
fn try_map(kind: MapKind) -> Result<(), BpfError> {
    let is_trie = kind == MapKind::LpmTrie;
    let definition = MapDefinition {
        name: "probe".to_owned(),
        kind,
        key_bytes: if is_trie { 8 } else { 4 },
        value_bytes: if kind == MapKind::Programs { 4 } else { 8 },
        entries: 1,
        flags: if is_trie { NO_PREALLOC } else { 0 },
    };
    let map = Map::create(&definition)?;
    if kind == MapKind::Programs {
        return Ok(());
    }
    let value = match map.entries()?.first() {
        Some((_, value)) => vec![0; value.len()],
        None => vec![0; 8],
    };
    map.put_all(&[(vec![0; definition.key_bytes as usize], value)])
}

// === impl Need ===

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Programs => f.write_str("BPF programs"),
            Self::Maps(kind) => write!(f, "BPF maps of kind {}", kind.name()),
        }
    }
}
