//! Labels of endpoints: those of Mesos tasks, converted to Kubernetes' syntax, and those that every
//! endpoint has (calico-cni.md sections 2.2.2 and 2.4).

use std::collections::BTreeMap;

/// The endpoint's namespace.
pub const NAMESPACE: &str = "projectcalico.org/namespace";
/// Its orchestrator.
pub const ORCHESTRATOR: &str = "projectcalico.org/orchestrator";
/// Its service account.
pub const SERVICE_ACCOUNT: &str = "projectcalico.org/serviceaccount";

/// A label is shorter than this; a service account's name can be longer (calico-cni.md section
/// 2.2.2).
const LABEL_MAX_CHARS: usize = 63;

/// The labels of a Mesos task, sanitised.
pub fn from_mesos(pairs: &[(String, String)]) -> BTreeMap<String, String> {
    let fit = pairs.iter().map(|(key, value)| (sanitised(key), sanitised(value)));
    fit.filter(|(key, _)| !key.is_empty()).collect()
}

/// The namespace that a Mesos task requests.
pub fn mesos_namespace(pairs: &[(String, String)]) -> Option<String> {
    let (_, value) = pairs.iter().find(|(key, _)| key == NAMESPACE)?;
    Some(sanitised(value)).filter(|value| !value.is_empty())
}

/// Sets the labels that every endpoint has, overriding labels of the pod.
pub fn force(
    labels: &mut BTreeMap<String, String>,
    namespace: &str,
    orchestrator: &str,
    service_account: &str,
) {
    labels.insert(NAMESPACE.to_owned(), namespace.to_owned());
    labels.insert(ORCHESTRATOR.to_owned(), orchestrator.to_owned());
    if !service_account.is_empty() && service_account.len() < LABEL_MAX_CHARS {
        labels.insert(SERVICE_ACCOUNT.to_owned(), service_account.to_owned());
    }
}

/// calico-cni.md section 2.4: slashes become dots, a run of other invalid characters becomes one
/// dash, a run of separators that contains a dot becomes one dot, and separators at the ends are
/// removed.
pub fn sanitised(text: &str) -> String {
    let is_separator = |c: char| matches!(c, '.' | '-');
    let mut dashed = String::new();
    let mut foreign = false;
    for c in text.chars().map(|c| if c == '/' { '.' } else { c }) {
        let good = c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        if good {
            dashed.push(c);
        } else if !foreign {
            dashed.push('-');
        }
        foreign = !good;
    }
    let mut clean = String::new();
    let mut rest = dashed.as_str();
    while let Some(c) = rest.chars().next() {
        let end = match is_separator(c) {
            true => rest.find(|c| !is_separator(c)).unwrap_or(rest.len()),
            false => c.len_utf8(),
        };
        let (run, after) = rest.split_at(end);
        clean.push_str(if run.contains('.') { "." } else { run });
        rest = after;
    }
    clean.trim_matches(is_separator).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(key: &str, value: &str) -> Vec<(String, String)> {
        vec![(key.to_owned(), value.to_owned())]
    }

    #[test]
    fn oracle_15_labels_are_sanitised_as_calico_does() {
        for (from, to) in [
            ("k", "k"),
            ("-my-val", "my-val"),
            ("$my..val", "my.val"),
            ("m$y.val", "m-y.val"),
            ("//my/val/", "my.val"),
            ("/a/b/c", "a.b.c"),
            ("some_val-with.lots*of^weird#characters", "some_val-with.lots-of-weird-characters"),
            ("a--b", "a--b"),
            ("a-.-b", "a.b"),
            ("$$$", ""),
            ("é", ""),
        ] {
            assert_eq!(sanitised(from), to, "{from}");
        }
    }

    #[test]
    fn oracle_13_labels_of_mesos_tasks_are_taken_over() {
        assert_eq!(from_mesos(&args("k", "v")), BTreeMap::from([("k".into(), "v".into())]));
        assert!(from_mesos(&[]).is_empty());
    }

    #[test]
    fn oracle_14_a_path_becomes_a_label_with_dots() {
        let labels = from_mesos(&args("DCOS_SPACE", "/a/b/c"));
        assert_eq!(labels, BTreeMap::from([("DCOS_SPACE".into(), "a.b.c".into())]));
    }

    #[test]
    fn a_mesos_label_chooses_the_namespace() {
        // calico-cni.md section 2.4
        assert_eq!(mesos_namespace(&args(NAMESPACE, "ns1")), Some("ns1".to_owned()));
        assert_eq!(mesos_namespace(&args("other", "ns1")), None);
    }

    #[test]
    fn a_long_service_account_is_no_label() {
        // calico-cni.md section 2.2.2
        let mut labels = BTreeMap::new();
        force(&mut labels, "ns", "k8s", &"a".repeat(63));
        assert_eq!(labels.len(), 2);
        force(&mut labels, "ns", "k8s", &"a".repeat(62));
        assert_eq!(labels.len(), 3);
    }
}
