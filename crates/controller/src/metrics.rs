//! `/metrics` and `/readyz` of the controller; docs/metrics.md lists the metrics.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use russet_http::health::{Process, Ready};

/// The controller's numbers; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Whether this replica leads.
    pub leader: Gauge,
    /// Addresses and handles of gone nodes that are not freed yet.
    pub candidates: Gauge,
    /// Those of them that may be freed.
    pub confirmed: Gauge,
    pub freed: Family<Reason, Counter>,
    /// Whether an operator has to resume.
    pub stopped: Gauge,
    /// Looks that failed.
    pub failures: Counter,
    pub nodes_cleaned: Counter,
    pub taints_removed: Counter,
    health: Arc<Mutex<Health>>,
}

/// Why something was freed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Reason {
    /// `pod-gone`, `pod-elsewhere`, `tunnel`, `handle`.
    pub reason: &'static str,
}

#[derive(Debug, Default)]
struct Health {
    unreachable: Option<String>,
    unserved: Option<String>,
}

// === impl Metrics ===

impl Metrics {
    /// Notes whether the API server answered; true if that, or the error, is new.
    pub fn reachable(&self, error: Option<String>) -> bool {
        let mut health = self.lock();
        let is_new = health.unreachable != error;
        health.unreachable = error;
        is_new
    }

    pub fn registry(&self) -> Registry {
        let mut all = Registry::default();
        all.register_collector(Box::new(Process::starting()));
        // The name that dashboards of Calico's controllers use.
        let help = "Addresses of nodes without an object that are not freed yet (Calico's name)";
        all.register("ipam_allocations_gc_candidates", help, self.candidates.clone());
        let ours = all.sub_registry_with_prefix("russet");
        ours.register("build", "The version", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        let controller = ours.sub_registry_with_prefix("controller");
        controller.register("leader", "1 while this replica leads", self.leader.clone());
        controller.register("look_failures", "Looks for garbage that failed", self.failures.clone());
        let help = "Taints that were removed because the node's agent is ready";
        controller.register("taints_removed", help, self.taints_removed.clone());
        let gc = ours.sub_registry_with_prefix("ipam_gc");
        let help = "Addresses of nodes without an object that are not freed yet";
        gc.register("candidates", help, self.candidates.clone());
        let help = "Those of them that nothing has, and that may be freed";
        gc.register("confirmed", help, self.confirmed.clone());
        gc.register("freed", "Addresses and handles that were freed, by reason", self.freed.clone());
        gc.register(
            "nodes_cleaned",
            "Nodes without an object of which nothing is left",
            self.nodes_cleaned.clone(),
        );
        let help = "1 while nothing is freed because too much vanished at once: `russet gc resume`";
        gc.register("stopped", help, self.stopped.clone());
        all
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ready for Metrics {
    /// A replica that waits is as ready as the leader.
    async fn reason(&self) -> Option<String> {
        let health = self.lock();
        let unreachable = health.unreachable.as_ref().map(|error| format!("API server: {error}"));
        unreachable.or_else(|| health.unserved.as_ref().map(|problem| format!("health: {problem}")))
    }

    async fn verbose(&self) -> String {
        let leads = if self.leader.get() == 1 { "leads" } else { "waits" };
        let reason = self.reason().await;
        let stopped = if self.stopped.get() == 1 { "[!] nothing is freed: `russet gc resume`\n" } else { "" };
        match reason {
            None => format!("[+] api server\n[!] this replica {leads}\n{stopped}"),
            Some(reason) => format!("[-] {reason}\n[!] this replica {leads}\n{stopped}"),
        }
    }

    fn served(&self, problem: Option<&str>) {
        self.lock().unserved = problem.map(str::to_owned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_metric_has_its_row_in_the_page() {
        let metrics = Metrics::default();
        metrics.freed.get_or_create(&Reason { reason: "tunnel" }).inc();
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &metrics.registry()).unwrap();
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let page = std::fs::read_to_string(page).unwrap();
        for (name, kind) in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')) {
            let ending = if kind == "counter" { "_total" } else { "" };
            let is_ours = name.starts_with("russet_ipam_gc") || name.starts_with("russet_controller");
            let row = format!("| `{name}{ending}` | {kind} |");
            assert!(!is_ours || page.contains(&row), "docs/metrics.md lacks {row}");
        }
        assert!(metrics.reachable(Some("away".to_owned())) && !metrics.reachable(Some("away".to_owned())));
        assert_eq!(metrics.reason().await.as_deref(), Some("API server: away"));
    }
}
