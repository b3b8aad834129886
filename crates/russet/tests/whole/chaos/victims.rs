//! Agents and etcd, which one thread kills and starts.

use std::process::Child;
use std::time::Duration;

use russet_testkit::{eventually, let_pass};

use super::site::Site;
use crate::fabric::Fabric;
use crate::node::TIMEOUT;

/// The nodes' agents, and their common etcd.
pub struct Victims<'a> {
    pub fabric: Option<&'a mut Fabric>,
    pub sites: Vec<&'a Site>,
    agents: Vec<Child>,
}

// === impl Victims ===

impl<'a> Victims<'a> {
    pub fn new(fabric: Option<&'a mut Fabric>, sites: Vec<&'a Site>) -> Self {
        let agents = sites.iter().map(|site| site.node.spawn_agent()).collect();
        let victims = Self { fabric, sites, agents };
        victims.wait_until_ready();
        victims
    }

    pub fn wait_until_ready(&self) {
        if let Some(fabric) = &self.fabric {
            eventually(TIMEOUT, || fabric.etcd_serves());
        }
        for site in &self.sites {
            eventually(TIMEOUT, || site.is_ready());
        }
    }

    /// Ends an agent as a crash would, and starts another after a while.
    pub fn kill_agent(&mut self, index: usize, down: Duration) {
        self.agents[index].kill().unwrap();
        self.agents[index].wait().unwrap();
        let_pass(down);
        self.agents[index] = self.sites[index].node.spawn_agent();
    }

    pub fn kill_etcd(&mut self, down: Duration) {
        let fabric = self.fabric.as_mut().expect("there is no etcd");
        fabric.kill_etcd();
        let_pass(down);
        fabric.start_etcd();
    }

    /// They were not killed since their start, so they must run.
    pub fn assert_alive(&mut self) {
        for (agent, site) in self.agents.iter_mut().zip(&self.sites) {
            assert_eq!(agent.try_wait().unwrap(), None, "an agent ended:\n{}", site.node.log());
        }
    }

    /// Ends the agent for good.
    pub fn end_agent(&mut self, index: usize) {
        self.agents[index].kill().unwrap();
        self.agents[index].wait().unwrap();
    }

    fn kill_agents(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

impl Drop for Victims<'_> {
    fn drop(&mut self) {
        self.kill_agents();
    }
}
