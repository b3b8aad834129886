//! The store's records of pods, compared with the expected ones.

use std::collections::BTreeSet;

use serde_json::Value;

use super::site::{NETWORK, Site};
use super::worker::Alive;

/// Addresses, handles and endpoints of the pods of a network.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct StoreRecords {
    /// Pairs `container address`.
    pub held: BTreeSet<String>,
    /// Containers with a handle.
    pub handles: BTreeSet<String>,
    /// Containers with a workload endpoint.
    pub endpoints: BTreeSet<String>,
    /// Blocks of addresses, as routes spell them.
    pub blocks: BTreeSet<String>,
}

const BLOCKS: &str = "/calico/ipam/v2/assignment/";
const HANDLES: &str = "/calico/ipam/v2/handle/";
const ENDPOINTS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints/";

// === impl StoreRecords ===

impl StoreRecords {
    /// Reads a node's store at one revision; returns the reason if it cannot be read now.
    pub fn read(site: &Site) -> Result<Self, String> {
        let answer = site.node.russet_inside(&["store", "dump", "--prefix", "/calico/"]);
        if answer.status != 0 {
            return Err(answer.stderr);
        }
        let dump: Value =
            serde_json::from_str(&answer.stdout).map_err(|error| format!("{error}: {}", answer.stdout))?;
        let mut records = Self::default();
        for record in dump["records"].as_array().unwrap() {
            records.enter(record["key"].as_str().unwrap(), &record["value"]);
        }
        Ok(records)
    }

    fn enter(&mut self, key: &str, value: &Value) {
        if key.starts_with(BLOCKS) {
            self.enter_block(key, value);
        } else if let Some(handle) = key.strip_prefix(HANDLES) {
            self.handles.extend(handle.strip_prefix(&format!("{NETWORK}.")).map(str::to_owned));
        } else if key.starts_with(ENDPOINTS) {
            self.endpoints.insert(value["spec"]["containerID"].as_str().unwrap().to_owned());
        }
    }

    fn enter_block(&mut self, key: &str, block: &Value) {
        let cidr: russet_addr::BlockCidr = block["cidr"].as_str().unwrap().parse().unwrap();
        self.blocks.insert(cidr.to_string());
        for (ordinal, index) in block["allocations"].as_array().unwrap().iter().enumerate() {
            let Some(index) = index.as_u64() else { continue };
            let attribute = &block["attributes"][usize::try_from(index).unwrap()];
            let handle = attribute["handle_id"].as_str().unwrap_or("none");
            let Some(container) = handle.strip_prefix(&format!("{NETWORK}.")) else { continue };
            let address = cidr.address(ordinal).unwrap();
            assert!(self.held.insert(format!("{container} {address}")), "{key}: {block}");
        }
    }

    /// The addresses of one container.
    pub fn addresses(&self, container: &str) -> BTreeSet<&str> {
        let words = self.held.iter().filter_map(|entry| entry.split_once(' '));
        words.filter(|(of, _)| *of == container).map(|(_, address)| address).collect()
    }

    /// The differences from the records of exactly these pods.
    pub fn faults(&self, alive: &[&Alive]) -> Vec<String> {
        let held = alive.iter().flat_map(|alive| {
            alive.addresses.iter().map(|address| format!("{} {address}", alive.pod.container))
        });
        let containers: BTreeSet<String> = alive.iter().map(|alive| alive.pod.container.clone()).collect();
        let mut faults = differences("address", &self.held, &held.collect());
        faults.extend(differences("handle", &self.handles, &containers));
        let stray = self.endpoints.difference(&containers);
        faults.extend(stray.map(|container| format!("a stray endpoint: {container}")));
        faults
    }
}

/// Missing and unexpected entries.
pub fn differences(what: &str, there: &BTreeSet<String>, wanted: &BTreeSet<String>) -> Vec<String> {
    let leaked = there.difference(wanted).map(|it| format!("stray {what}: {it}"));
    leaked.chain(wanted.difference(there).map(|it| format!("{what} is missing: {it}"))).collect()
}
