//! Kubernetes' rules for names: a manifest that is valid here is valid there.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameRule {
    /// A DNS subdomain (RFC 1123): a pod's name.
    Subdomain,
    /// A DNS label (RFC 1123): a namespace, a host name.
    Label,
    /// The key of a label or annotation: a name, optionally after a subdomain and a slash.
    Key,
    LabelValue,
}

const LABEL_MAX_BYTES: usize = 63;
const SUBDOMAIN_MAX_BYTES: usize = 253;

// === impl NameRule ===

impl NameRule {
    pub(super) fn allows(self, text: &str) -> bool {
        match self {
            Self::Subdomain => text.len() <= SUBDOMAIN_MAX_BYTES && text.split('.').all(is_label),
            Self::Label => text.len() <= LABEL_MAX_BYTES && is_label(text),
            Self::Key => match text.rsplit_once('/') {
                Some((prefix, name)) => Self::Subdomain.allows(prefix) && is_qualified(name),
                None => is_qualified(text),
            },
            Self::LabelValue => text.is_empty() || is_qualified(text),
        }
    }
}

impl fmt::Display for NameRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Subdomain => "at most 253 small letters, digits, dashes and dots, with a letter or digit at both ends of each part",
            Self::Label => "at most 63 small letters, digits and dashes, with a letter or digit at both ends",
            Self::Key => "a key of at most 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends, and before it a DNS name and a slash if wanted,",
            Self::LabelValue => "a value of at most 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends,",
        })
    }
}

/// Without the limit of length, which Kubernetes does not apply to the parts of a subdomain.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.bytes().all(inner) && has_good_ends(text)
}

fn is_qualified(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.len() <= LABEL_MAX_BYTES && text.bytes().all(inner) && has_good_ends(text)
}

fn has_good_ends(text: &str) -> bool {
    [text.bytes().next(), text.bytes().next_back()]
        .iter()
        .all(|end| end.is_some_and(|it| it.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_allowed_as_kubernetes_allows_them() {
        let (long, longer) = ("a".repeat(63), "a".repeat(64));
        for (rule, good, bad) in [
            (
                NameRule::Subdomain,
                vec!["web", "a.b-c.0", &longer],
                vec!["Web", "a_b", "-a", "a-", "a..b", ".a", "a b", "é"],
            ),
            (NameRule::Label, vec!["default", "0", &long], vec!["a.b", "A", "a-", &longer]),
            (
                NameRule::Key,
                vec!["app", "app.kubernetes.io/name", "A_b.c"],
                vec!["", "/a", "a/", "A.io/x", "a/b/c", "a b", &longer],
            ),
            (NameRule::LabelValue, vec!["", "v1.2_X", &long], vec!["-", "a:b", &longer]),
        ] {
            for text in good {
                assert!(rule.allows(text), "{rule:?} {text}");
            }
            for text in bad {
                assert!(!rule.allows(text), "{rule:?} {text}");
            }
        }
    }
}
