//! The agent's settings for probes of other nodes.

use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::Args;

use super::span::Span;

/// How an agent probes other nodes.
#[derive(Debug, Default, Args)]
pub struct PeerArgs {
    /// Whether the agent probes other nodes through the data path of pods, and holds addresses for their probes, `on` or `off` [default: on].
    #[arg(long, env = "RUSSET_PEER_PROBES", value_name = "WHETHER")]
    pub peer_probes: Option<PeerProbing>,
    /// The time from one probe of a node to the next; three lost ones in a row make it unreachable [default: 5s].
    #[arg(long, env = "RUSSET_PEER_PROBE_INTERVAL", value_name = "TIME")]
    pub peer_probe_interval: Option<Span>,
    /// How many nodes are probed at a time; in a larger cluster they take turns [default: 16].
    #[arg(long, env = "RUSSET_PEERS_AT_A_TIME", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub peers_at_a_time: Option<u32>,
    /// `/readyz` fails while none of the nodes that are probed answers. Pods can still be attached.
    #[arg(long, env = "RUSSET_READY_NEEDS_PEERS")]
    pub ready_needs_peers: bool,
}

/// Whether other nodes are probed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PeerProbing {
    #[default]
    On,
    Off,
}

/// The allowed numbers of nodes that are probed at a time: with 256 a node sends a hundred echoes a second.
pub const PROBED_RANGE: RangeInclusive<u32> = 1..=256;

// === impl PeerProbing ===

impl FromStr for PeerProbing {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err("`on` or `off` is wanted"),
        }
    }
}
