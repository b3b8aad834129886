//! The running backend `extension`: one command for each lease that is added, changed or removed,
//! in order.

use std::collections::BTreeMap;

use russet_lease::Lease;
use russet_model::flannel::{NetworkConfig, SubnetKey};

use super::CarrierError;
use crate::extension::{Extension, Subject};
use crate::interface::External;

/// The operator's commands, and the leases for which they ran.
pub struct Commands {
    extension: Extension,
    config: NetworkConfig,
    own: Subject,
    notified: BTreeMap<SubnetKey, Lease>,
}

// === impl Commands ===

impl Commands {
    pub fn new(extension: Extension, external: &External, config: &NetworkConfig) -> Self {
        let own = Subject {
            subnet: None,
            subnet_v6: None,
            public_ip: external.public_v4.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED),
            public_ipv6: external.public_v6,
        };
        Self { extension, config: config.clone(), own, notified: BTreeMap::new() }
    }

    /// Runs the command that follows the lease.
    pub async fn own(&mut self, own: &SubnetKey) -> Result<(), CarrierError> {
        (self.own.subnet, self.own.subnet_v6) = (own.v4, own.v6);
        Ok(self.extension.after_lease(self.config.v4(), &self.own).await?)
    }

    /// Runs the commands for the differences to the known leases.
    pub async fn reset(&mut self, leases: Vec<Lease>) -> bool {
        let now: BTreeMap<SubnetKey, Lease> = leases.into_iter().map(|lease| (lease.key, lease)).collect();
        let gone = self.notified.values().filter(|lease| !now.contains_key(&lease.key)).cloned().collect();
        let new = |lease: &&Lease| {
            self.notified.get(&lease.key).is_none_or(|was| was.attributes != lease.attributes)
        };
        let put = now.values().filter(new).cloned().collect();
        self.change(gone, put).await
    }

    /// Runs the commands for these changes. Always true: a failed command is logged and not run
    /// again (flannel.md section 6.8).
    pub async fn change(&mut self, gone: Vec<Lease>, put: Vec<Lease>) -> bool {
        for lease in gone {
            self.notified.remove(&lease.key);
            if let Some(data) = data(&lease) {
                let result = self.extension.removed(&subject(&lease), &data).await;
                warn(result, &lease);
            }
        }
        for lease in put {
            if let Some(data) = data(&lease) {
                let result = self.extension.added(&subject(&lease), &data).await;
                warn(result, &lease);
            }
            self.notified.insert(lease.key, lease);
        }
        true
    }
}

fn warn(result: Result<(), crate::extension::CommandError>, lease: &Lease) {
    if let Err(error) = result {
        tracing::error!(%error, subnet = %lease.key, "a command of backend extension failed");
    }
}

fn subject(lease: &Lease) -> Subject {
    Subject {
        subnet: lease.key.v4,
        subnet_v6: lease.key.v6,
        public_ip: lease.attributes.public_ip,
        public_ipv6: lease.attributes.public_ipv6,
    }
}

/// The text in the lease's data, empty if there is none; `None` if it is not a JSON string.
fn data(lease: &Lease) -> Option<String> {
    let Some(raw) = &lease.attributes.backend_data else { return Some(String::new()) };
    match serde_json::from_str(raw) {
        Ok(text) => Some(text),
        Err(error) => {
            let what = "the data of a lease is not a text: its command is not run";
            russet_store::refused(what, lease.key, &error);
            None
        }
    }
}

/// Encodes text as JSON.
pub fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
