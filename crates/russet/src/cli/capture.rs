//! The command line of `russet capture`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;
use super::span::Span;

pub const EXAMPLES: &str = "Examples:
  russet capture shop/web                       until Ctrl-C, into russet-capture-shop-web-TIME.pcapng
  russet capture shop/web --port 5432 --count 100 --duration 30s
  russet capture node-b                         the tunnel to node-b, outside and inside; 10.0.0.12, its address, works, too
  russet capture eth0 --host 10.244.1.7
  ssh node russet capture shop/web --file - | wireshark -k -i -

Packets of a pod are shown wherever this node sees them, each place under its own name: the pod's host end, the tunnel's device, and the
interfaces to other nodes, there plain and in the tunnel's packets. What leaves with the node's address is on the host end only. On a host
end, inbound is what the pod sends. Packets that the fast path carries would pass by the host end and the tunnel's device: while the
capture runs, the agent leaves those of the pod or node to the kernel's path, and so at most 10 s longer if the capture is killed.

It needs root, and no other program. The file is pcapng, for Wireshark, tshark and tcpdump, has mode 0600, and replaces no other one
without --force. Payload is in it unless --snap-length cuts it. It ends at the first limit, with SIGINT or SIGTERM, or when the reader
of a pipe is gone; the file is complete then.

Exit codes: 0 captured, also if no packet came; 1 failed; 2 usage.";

#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// A pod (NAMESPACE/POD, its name alone, or its container), another node (its name, or its address), or an interface.
    #[arg(value_name = "POD|NODE|INTERFACE")]
    pub target: String,
    /// Where to write, or `-` for standard output [default: russet-capture-TARGET-TIME.pcapng in the current directory].
    #[arg(long, short = 'w', value_name = "FILE|-")]
    pub file: Option<PathBuf>,
    /// Replace the file if it exists.
    #[arg(long)]
    pub force: bool,
    /// End after so many packets. One that is seen in three places counts as three.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this time.
    #[arg(long, value_name = "TIME")]
    pub duration: Option<Span>,
    /// End when the file has so many MiB.
    #[arg(long, default_value_t = 100, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub size_limit: u64,
    /// How many bytes of each packet are kept.
    #[arg(long, default_value_t = 262_144, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(64..=262_144))]
    pub snap_length: u32,
    /// Only packets from or to this address; of a tunnel's packets the inner one counts.
    #[arg(long, value_name = "ADDRESS")]
    pub host: Option<IpAddr>,
    /// Only packets from or to this port of TCP, UDP or SCTP.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The root directory of the node whose pod it is.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}
