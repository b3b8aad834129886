//! The command line of `russet ui`, and the agent's setting for its page.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

pub const EXAMPLES: &str = "Examples:
  russet ui                     print an address for a browser on this machine, and serve it until it is interrupted
  russet ui --open              the same, and open it with xdg-open
  ssh -L 8474:127.0.0.1:8474 NODE russet ui --port 8474
  kubectl exec -n russet-system POD -- russet ui --agent-url      where the agent has --ui-address: its own address, for
  kubectl port-forward -n russet-system POD 9474

The page comes from the agent's socket, which only root can reach; the address that is printed has a random token, and works for nothing but reading. docs/ui.md.

Exit codes: 0 it was interrupted; 1 no agent runs, or the port is taken; 2 usage.";

#[derive(Debug, Args)]
pub struct UiArgs {
    /// Open the address with xdg-open, as the user whose desktop it is.
    #[arg(long)]
    pub open: bool,
    /// The port on 127.0.0.1; by default one that is free.
    #[arg(long, default_value_t = 0, value_name = "PORT", hide_default_value = true)]
    pub port: u16,
    /// Print the address with the token at which the agent itself serves the page (--ui-address of `russet agent`), and end.
    #[arg(long, conflicts_with_all = ["open", "port"])]
    pub agent_url: bool,
    /// The root directory of the node whose agent it is.
    #[arg(long, env = "RUSSET_ROOT", default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
}

/// An address of this machine that others cannot reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UiAddress(pub SocketAddr);

// === impl UiAddress ===

impl FromStr for UiAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted =
            "an address of this machine only and a port are wanted, as in 127.0.0.1:9474 or [::1]:9474";
        match text.parse::<SocketAddr>() {
            Ok(address) if !address.ip().is_loopback() => Err(format!(
                "{}: other hosts reach it, and the page is not encrypted; {wanted}",
                address.ip()
            )),
            Ok(address) if address.port() == 0 => Err(format!("port 0: {wanted}")),
            Ok(address) => Ok(Self(address)),
            Err(_) => Err(format!("{text:?}: {wanted}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_that_other_hosts_do_not_reach_is_accepted() {
        for text in ["127.0.0.1:9474", "[::1]:9474", "127.1.2.3:80"] {
            assert_eq!(text.parse::<UiAddress>().unwrap().0.to_string(), text);
        }
        for text in
            ["0.0.0.0:9474", "10.0.0.1:9474", "[::]:9474", "127.0.0.1", "localhost:9474", "127.0.0.1:0", ""]
        {
            assert!(text.parse::<UiAddress>().unwrap_err().contains("127.0.0.1:9474"), "{text}");
        }
    }
}
