//! Other IPAM plugins on the v1 model: `host-local`, with the node's pod prefix if the
//! configuration refers to it (calico-cni.md sections 2.3, 2.5.1 and 2.6).

use std::net::IpAddr;

use russet_cni_spec::{CniError, Verb};
use russet_model::v1::V1Key;
use russet_wiring::stages::{Stage, during};
use russet_wiring::{Delegate, failure};

use super::{Stored, Taken, V1Request};
use crate::plugin::ipam_config;

impl V1Request<'_> {
    /// Allocates addresses by the configured IPAM plugin. The same interface of the same container
    /// keeps those of its endpoint, because such plugins refuse a second allocation for a
    /// container.
    pub(super) async fn take_delegated(&self, existing: Option<&Stored>) -> Result<Taken, CniError> {
        let kind = self.conf.ipam.named_kind()?;
        let named = |facts: &super::PodFacts| facts.ip_addrs.is_some() || facts.ip_addrs_no_ipam.is_some();
        if self.facts.is_some_and(named) {
            let msg = "the annotations ipAddrs and ipAddrsNoIpam cannot be used";
            return Err(CniError::invalid_config(msg, "they need ipam.type calico-ipam"));
        }
        if let Some(addresses) = existing.and_then(|stored| self.existing_addresses(stored)) {
            return Ok(Taken { addresses, mark: None, delegate: None });
        }
        let delegate = Delegate::new(kind, self.request, self.ipam_stdin().await?)?;
        let result = during(Stage::Address, delegate.add()).await?;
        let addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
        let taken = Taken { addresses, mark: None, delegate: Some(delegate) };
        if taken.addresses.is_empty() {
            return Err(self.give_back(&taken, self.conf.ipam.no_addresses()).await);
        }
        Ok(taken)
    }

    fn existing_addresses(&self, stored: &Stored) -> Option<Vec<IpAddr>> {
        let same = stored.endpoint.active_instance_id == self.target.id.container.as_str()
            && stored.key == V1Key::Endpoint(self.id.clone()).key();
        let addresses: Vec<IpAddr> = stored.endpoint.nets().map(|net| net.addr()).collect();
        (same && !addresses.is_empty()).then_some(addresses)
    }

    /// The configuration for an ADD.
    async fn ipam_stdin(&self) -> Result<Vec<u8>, CniError> {
        let stdin = &self.request.stdin;
        if self.conf.ipam.kind != "host-local" {
            return Ok(stdin.clone());
        }
        let clusters = &self.node.clusters;
        let filled = ipam_config::with_pod_cidrs(stdin, clusters, self.conf, &self.name, self.log).await?;
        Ok(filled.unwrap_or_else(|| stdin.clone()))
    }

    /// The plugin for verbs that need no prefix.
    fn delegate(&self) -> Result<Delegate, CniError> {
        let stdin = ipam_config::with_catch_all_cidrs(&self.request.stdin)?;
        Delegate::new(&self.conf.ipam.kind, self.request, stdin.unwrap_or_else(|| self.request.stdin.clone()))
    }

    /// Has the plugin release its addresses. `newer` are addresses of a newer container of the pod:
    /// v1's plugin gave it those of the older container again, under the older one's name, so this
    /// release could free an address in use.
    pub(super) async fn release_delegated(&self, newer: Option<&[IpAddr]>) -> Result<(), CniError> {
        if newer.is_some_and(|addresses| !addresses.is_empty()) {
            let kind = &self.conf.ipam.kind;
            let warning =
                format!("{kind} keeps the container's addresses: a newer container of the pod may use them");
            self.log.warn(warning);
            return Ok(());
        }
        during(Stage::Release, self.delegate()?.call(Verb::Del)).await
    }

    /// Checks that the plugin still knows the addresses.
    pub(super) async fn check_delegated(&self) -> Result<(), CniError> {
        match self.conf.ipam.kind.as_str() {
            "" | "calico-ipam" => Ok(()),
            _ => self.delegate()?.call(Verb::Check).await,
        }
    }

    /// Without `ipam` in the configuration, it is unknown which plugin must release the addresses.
    /// Addresses of Calico are in its pools; for others the DEL fails while the endpoint still
    /// names them.
    pub(super) async fn refuse_others_addresses(&self, stored: &Stored) -> Result<(), CniError> {
        let pools = self.allocator.pools().await;
        let pools = pools.map_err(|error| failure::ipam("the pools could not be read", error))?;
        let is_calicos = |address: &IpAddr| pools.iter().any(|pool| pool.spec.cidr.contains(address));
        match stored.endpoint.nets().map(|net| net.addr()).find(|address| !is_calicos(address)) {
            None => Ok(()),
            Some(address) => {
                let msg = format!("ipam.type is missing, and {address} is in no pool of Calico's");
                let details = format!(
                    "name the IPAM plugin that gave the address, and repeat the DEL; {} stays until then",
                    stored.key
                );
                Err(CniError::invalid_config(msg, details))
            }
        }
    }
}
