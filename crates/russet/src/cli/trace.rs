//! The command line of `russet trace`.

use clap::Args;
use russet_verdict::explain::Peer;

use super::OutputArgs;
use super::span::Span;
use super::store::StoreChoice;

pub const EXAMPLES: &str = "Examples:
  russet trace shop/web shop/db 5432                all packets of it for 30 seconds, both directions
  russet trace shop/web 10.96.0.10 53 --proto udp   to a Service's address: its requests and their answers
  russet trace 10.244.1.7 10.244.2.9 --for 5m
  russet trace shop/web shop/db --proto icmp -o json   one object a line

For each packet it prints the chains of nf_tables that it passes on this node, what each of Russet's tables does there, the rule and the verdict, and its end:
it passed, it was dropped and by what, or it was seen no more, which is a drop outside of these chains (no route, rp_filter, a TTL that expired, a packet larger
than the MTU that must not be fragmented, iptables-legacy). Not seen are chains of family netdev, which are before (ingress) and after (egress) all others, and
chains with priorities below -399. The kernel does not say which policy decided: `russet explain A B PORT` does. Only packets after the start are traced.

A packet is known by its addresses when it comes in, before they are translated. Answers of connections from A to B that come with other addresses (of a Service,
or to a node that masquerades) are known by connection tracking, if the node has rules of nat at the start; chains with priorities below -199 do not show them.

It needs root and no agent. It reads addresses of this node's pods from the journal, and those of others from the datastore. A table `inet russet-trace-N` marks the
packets, at most 100 a second of each of its rules, and others are counted; 16 traces can run at once. The table is removed at the end. If the command is killed,
its elements time out, and the next trace or `russet uninstall` removes it. If another program removes it before, the trace fails. Output that is not read ends with the
trace: what does not fit into the pipe and 1,024 more packets is counted.

Packets that the fast path carries pass no chain, and are not traced. Each start of a trace lets the kernel decide anew about every flow, so the next packets
of each are seen (docs/fast-path.md).

Exit codes: 0 traced, also if no packet came; 3 a packet was dropped; 1 failed, or stopped before the start; 2 usage.";

/// The protocols of [`TraceArgs::proto`].
const PROTOCOLS: [(&str, u8); 4] = [("tcp", 6), ("udp", 17), ("sctp", 132), ("icmp", 1)];

#[derive(Debug, Args)]
pub struct TraceArgs {
    /// One end: NAMESPACE/POD, an address, node:NAME or service:NAMESPACE/NAME, which means its endpoints.
    #[arg(value_name = "A")]
    pub from: Peer,
    /// The other end, in the same forms.
    #[arg(value_name = "B")]
    pub to: Peer,
    /// Only packets to this port of B, and from it.
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Only this protocol: `tcp`, `udp`, `sctp` or `icmp` [default: tcp with PORT, else all].
    #[arg(long, value_name = "PROTOCOL", value_parser = protocol)]
    pub proto: Option<u8>,
    /// End after this time.
    #[arg(long = "for", default_value = "30s", value_name = "TIME")]
    pub duration: Span,
    #[command(flatten)]
    pub place: StoreChoice,
    #[command(flatten)]
    pub output: OutputArgs,
}

fn protocol(text: &str) -> Result<u8, &'static str> {
    let found = PROTOCOLS.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, number)| number).ok_or("tcp, udp, sctp or icmp is wanted")
}
