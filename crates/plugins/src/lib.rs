//! The CNI plugins, one module each. The agent runs them for requests of its socket, `russet cni-direct` for a node
//! without an agent: the same code, on a [`Node`] that says what it has to work with.

#[allow(dead_code, reason = "`calico` and `calico-ipam`, which read it, are being written")]
mod calico_conf;
mod failure;
mod gc;
mod loopback;
mod node;
mod russet;
mod settings;
mod target;
mod wiring;

use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, CniResult};

pub use node::{Clock, Node, NotReady, SystemClock, Teardown};

/// Types that [`run`] knows.
pub const NAMES: [&str; 2] = ["russet", "loopback"];

/// Carries out one request of the plugin called `name`. Once started it is to be run to its end: dropping the future
/// half-way may leave an address that only DEL gives back.
pub async fn run(node: &Node, name: &str, request: &Request) -> Result<Option<CniResult>, CniError> {
    let done = match name {
        "russet" => russet::run(node, request).await,
        "loopback" => loopback::run(node, request).await,
        _ => {
            let details = format!("known: {}", NAMES.join(", "));
            Err(CniError::unsupported_field(format!("type: {name:?} is not a plugin of this agent"), details))
        }
    };
    done.map_err(|error| error.in_version(request.config.cni_version))
}
