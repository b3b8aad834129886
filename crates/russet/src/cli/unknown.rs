//! Verbs and kinds of kubectl and calicoctl that Russet does not have: what to use instead.

/// Verbs of kubectl and calicoctl, with their replacements.
const VERBS: [(&str, &str); 11] = [
    (
        "node",
        "`russet status` shows this node, `russet status --cluster` all of them; `russet get nodes` has their records",
    ),
    (
        "describe",
        "`russet get KIND NAME -o yaml` prints a resource whole; `russet ipam who ADDRESS` and `russet ipam why` explain addresses",
    ),
    ("create", "`russet apply -f FILE` creates what is not there and changes what is"),
    ("replace", "`russet apply -f FILE` creates what is not there and changes what is"),
    ("patch", "`russet get KIND NAME -o yaml`, an editor and `russet apply -f FILE` change a resource"),
    ("edit", "`russet get KIND NAME -o yaml`, an editor and `russet apply -f FILE` change a resource"),
    (
        "label",
        "`russet get KIND NAME -o yaml`, an editor and `russet apply -f FILE` change a resource's labels",
    ),
    ("logs", "`journalctl -u russet-agent` shows the agent's log"),
    ("exec", "`russet sandbox exec POD -- PROGRAM` runs a program in a pod of `russet sandbox`"),
    (
        "run",
        "`russet sandbox run FILE` makes a pod from a manifest, `russet cni add NETWORK NETNS` attaches a namespace",
    ),
    (
        "networkpolicy",
        "`russet get networkpolicies -A` lists Calico's, `russet get netpol -A` those in Kubernetes' form; docs/policy.md says which are enforced",
    ),
];

/// Kinds of Calico and Kubernetes, lower case and singular, with what to use instead.
const KINDS: [(&str, &str); 6] = [
    (
        "pod",
        "`russet get pods -A` lists pods with their addresses; a pod itself is its runtime's: `kubectl` or `russet sandbox` changes it",
    ),
    ("block", "`russet ipam show --show-blocks` lists blocks"),
    ("ipamconfig", "`russet ipam show --show-configuration` prints it, `russet ipam configure` changes it"),
    ("bgppeer", "Russet does not speak BGP; it routes directly or by VXLAN"),
    ("bgpconfiguration", "Russet does not speak BGP; it routes directly or by VXLAN"),
    ("clusterinformation", "calicoctl prints it; Russet only reads `datastoreReady`"),
];

/// What to use instead of a verb that Russet does not have.
pub fn instead_of_verb(word: &str) -> Option<&'static str> {
    VERBS.iter().find(|(verb, _)| *verb == word).map(|(_, instead)| *instead)
}

/// What to use instead of a kind that Russet does not have.
pub fn instead_of_kind(word: &str) -> Option<&'static str> {
    let singular = word.trim_end_matches('s');
    KINDS.iter().find(|(kind, _)| *kind == singular).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_kubectl_and_calicoctl_lead_to_what_russet_has() {
        assert!(instead_of_verb("node").unwrap().contains("russet status"));
        assert_eq!(instead_of_verb("status"), None);
        assert!(instead_of_verb("describe").unwrap().contains("russet get"));
        assert_eq!(instead_of_verb("get"), None);
        assert!(instead_of_kind("bgpconfigurations").unwrap().contains("BGP"));
        assert!(instead_of_kind("pods").unwrap().contains("russet get pods"));
        assert_eq!(instead_of_kind("ippools"), None);
    }

    #[test]
    fn no_verb_that_russet_has_is_listed_as_missing() {
        use clap::CommandFactory as _;
        for verb in super::super::Cli::command().get_subcommands() {
            assert_eq!(instead_of_verb(verb.get_name()), None, "{}", verb.get_name());
        }
    }
}
