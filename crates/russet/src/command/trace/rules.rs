//! What the stages of a packet mean: hooks of chains and texts of rules from the kernel, and what Russet's own tables do.

use std::collections::BTreeMap;

use russet_nft::{ChainInfo, Hook, Nft, RuleInfo, Table};

use super::way::Stage;

/// Chains and rules of the kernel, read when a packet has met them.
#[derive(Debug)]
pub struct Rules {
    nft: Nft,
    chains: Vec<ChainInfo>,
    rules: BTreeMap<(Table, String), Vec<RuleInfo>>,
    /// How often the kernel was asked since the last pause.
    asked: usize,
}

/// A node with more chains that packets meet has their rules read again and again.
const CHAINS_MAX: usize = 1024;
/// The most questions to the kernel between two pauses. Rules that come and go must not stop the trace.
const ASKED_MAX: usize = 64;
/// The most characters of a rule's description.
const RULE_MAX_CHARS: usize = 120;

// === impl Rules ===

impl Rules {
    pub fn read() -> Result<Self, russet_nft::NetlinkError> {
        let mut nft = Nft::open()?;
        let chains = nft.all_chains()?;
        Ok(Self { nft, chains, rules: BTreeMap::new(), asked: 0 })
    }

    /// Allows questions again.
    pub fn pause(&mut self) {
        self.asked = 0;
    }

    /// The hook at which the stage's chain is.
    pub fn hook(&mut self, stage: &Stage) -> Option<Hook> {
        let first = stage.chains.first()?;
        let is_it = |info: &&ChainInfo| info.chain.table == stage.table && info.chain.name == *first;
        let known = self.chains.iter().any(|info| is_it(&info));
        if !known && self.may_ask() {
            self.chains = self.nft.all_chains().unwrap_or_default();
        }
        self.chains.iter().find(is_it)?.chain.base.as_ref().map(|base| base.hook)
    }

    /// A rule as its handle, its comment and its expressions.
    pub fn rule(&mut self, stage: &Stage) -> Option<String> {
        let (handle, chain) = (stage.rule?, stage.chains.last()?);
        let key = (stage.table.clone(), chain.clone());
        let is_known =
            self.rules.get(&key).is_some_and(|rules| rules.iter().any(|rule| rule.handle == handle));
        if !is_known && self.may_ask() {
            if self.rules.len() >= CHAINS_MAX {
                self.rules.clear();
            }
            let read = self.nft.rules_of(&stage.table, chain).unwrap_or_default();
            self.rules.insert(key.clone(), read);
        }
        let rule = self.rules.get(&key).and_then(|rules| rules.iter().find(|rule| rule.handle == handle));
        Some(describe(handle, rule))
    }

    fn may_ask(&mut self) -> bool {
        self.asked += 1;
        self.asked <= ASKED_MAX
    }
}

fn describe(handle: u64, rule: Option<&RuleInfo>) -> String {
    let Some(rule) = rule else { return format!("rule {handle}") };
    let comment = rule.comment.as_ref().map(|comment| format!(" {comment:?}")).unwrap_or_default();
    let text = format!("rule {handle}{comment} ({})", rule.expressions.join(" "));
    match text.char_indices().nth(RULE_MAX_CHARS) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// What a table of Russet's does with a packet at this stage; none for those of other programs.
pub fn meaning(stage: &Stage) -> Option<&'static str> {
    let last = stage.chains.last().map(String::as_str).unwrap_or_default();
    let has = |beginning: &str| stage.chains.iter().any(|chain| chain.starts_with(beginning));
    Some(match stage.table.name.as_str() {
        "russet-decisions" if last.starts_with("denied-reply") || last.starts_with("log-denied-reply") => {
            "policies: the connection of this answer is denied"
        }
        "russet-decisions" if last.starts_with("denied") || last.starts_with("log-denied") => {
            "policies: denied"
        }
        "russet-decisions" if has("judged") => "policies: allowed, and noted in the connection's mark",
        "russet-decisions" if has("log-allowed") => "policies: allowed, and logged",
        "russet-decisions" => "policies: nothing to decide, or decided before for this connection",
        "russet-hosts" if has("denied") || has("log-denied") => "host endpoints: denied",
        "russet-hosts" if has("not-to-node") => "host endpoints: pods may not send to their node",
        "russet-hosts" => "host endpoints: what the node's own interfaces carry",
        "russet-policy" if has("guard") => "guards of pods: source addresses, tunnels, router advertisements",
        "russet-policy" if has("from-pod") => "known host ends: from a pod",
        "russet-policy" if has("to-pod") => "known host ends: to a pod",
        "russet-policy" => "known host ends: not of a pod",
        "russet-cni" if last.starts_with("masq-") => "masquerade of pods",
        "russet-cni" => "published ports",
        "russet" if has("overlay-tunnel") || has("overlay-pod-tunnel") => {
            "overlay: who may send to the tunnel"
        }
        "russet" if has("overlay-encapsulated") || has("overlay-pod-encapsulated") => {
            "overlay: tunnels besides Russet's"
        }
        "russet" if has("overlay-postrouting") => "overlay: masquerade of what leaves the pools",
        "russet" if has("overlay-forward") => "overlay: forwarding of pods",
        "russet" => "overlay",
        "russet-peers" => "overlay: counts tunnel packets of nodes that do not answer",
        "russet-sdn" | "openshift-block-output" => "OpenShift: tenants and egress",
        name if name.starts_with("russet-flannel") => "flannel: guards and masquerade",
        _ => return None,
    })
}

pub const fn hook_name(hook: Hook) -> &'static str {
    match hook {
        Hook::Prerouting => "prerouting",
        Hook::Input => "input",
        Hook::Forward => "forward",
        Hook::Output => "output",
        Hook::Postrouting => "postrouting",
        Hook::Ingress => "ingress",
        Hook::Egress => "egress",
    }
}

#[cfg(test)]
mod tests {
    use russet_nft::{TableFamily, Verdict};

    use super::*;

    fn stage(table: &str, chains: &[&str]) -> Stage {
        let chains = chains.iter().map(|it| (*it).to_owned()).collect();
        Stage { table: Table::inet(table), chains, rule: None, verdict: Some(Verdict::Accept) }
    }

    #[test]
    fn the_tables_of_russet_are_named_by_what_they_do_and_others_are_not() {
        let meaning = |table, chains: &[&str]| meaning(&stage(table, chains));
        let denied = meaning("russet-decisions", &["postrouting", "forwarded4", "in4", "denied-in"]);
        assert_eq!(denied, Some("policies: denied"));
        assert!(meaning("russet-decisions", &["postrouting", "judged4"]).unwrap().contains("allowed"));
        assert!(meaning("russet-policy", &["prerouting", "guard-source"]).unwrap().starts_with("guards"));
        assert_eq!(meaning("filter", &["FORWARD"]), None);
    }

    #[test]
    fn a_rule_is_described_by_its_handle_and_what_is_known_of_it() {
        let rule = |comment: Option<&str>, expressions: &[&str]| RuleInfo {
            table: Table::new(TableFamily::Ip, "filter"),
            chain: "FORWARD".into(),
            handle: 7,
            comment: comment.map(str::to_owned),
            expressions: expressions.iter().map(|it| (*it).to_owned()).collect(),
            verdict: None,
            packets: None,
            digest: 0,
        };
        assert_eq!(describe(7, None), "rule 7");
        let described = describe(7, Some(&rule(Some("no\n"), &["payload", "cmp"])));
        assert_eq!(described, r#"rule 7 "no\n" (payload cmp)"#);
        let long = describe(7, Some(&rule(None, &["é"; 200])));
        assert_eq!(long.chars().count(), RULE_MAX_CHARS + 3);
    }
}
