//! A node's annotations: their names, the wanted values, and how they are parsed (flannel.md
//! section 5.1). Pure.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use russet_model::flannel::{Attributes, Vtep};

/// The default prefix of annotations.
pub const DEFAULT_PREFIX: &str = "flannel.alpha.coreos.com";

/// The annotation of a backend without data, which is how Go encodes an empty raw message.
const NO_DATA: &str = "null";

/// A node's annotations, present or wanted.
pub(super) type Annotations = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnotationPrefix(String);

/// The text is not a valid prefix of annotations.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "annotation prefix {0:?} is not as flannel.alpha.coreos.com, or example.com/name: lower case, a dot, at most one /"
)]
pub struct PrefixError(String);

/// The annotations of a node that were written before its daemon started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stored {
    /// `node-public-ip`: has the effect of the flag `public-ip`.
    pub public_ip: Option<Ipv4Addr>,
    /// `node-public-ipv6`.
    pub public_ipv6: Option<Ipv6Addr>,
    /// The tunnel's ends that this node published last, IPv4 first: peers know these MACs.
    pub vteps: [Option<Vtep>; 2],
}

// === impl AnnotationPrefix ===

impl AnnotationPrefix {
    fn name(&self, last: &str) -> String {
        format!("{}{last}", self.0)
    }

    fn value<'a>(&self, annotations: &'a Annotations, last: &str) -> Option<&'a str> {
        annotations.get(&self.name(last)).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a daemon manages the node.
    pub(super) fn is_managed(&self, annotations: &Annotations) -> bool {
        self.value(annotations, "kube-subnet-manager") == Some("true")
    }

    /// The attributes that a node published earlier.
    pub(super) fn stored(&self, annotations: &Annotations) -> Stored {
        let vtep = |last| self.value(annotations, last).and_then(|text| Vtep::from_json(text).ok());
        Stored {
            public_ip: self.address(annotations, "node-public-ip"),
            public_ipv6: self.address(annotations, "node-public-ipv6"),
            vteps: [vtep("backend-data"), vtep("backend-v6-data")],
        }
    }

    /// An address that an operator set. An invalid one is ignored with a warning: the node's own
    /// address is better than none.
    fn address<T: FromStr>(&self, annotations: &Annotations, last: &str) -> Option<T> {
        let text = self.value(annotations, last)?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            tracing::warn!(
                annotation = self.name(last),
                value = text,
                "an annotation is passed over: it is no address"
            );
        }
        parsed
    }

    /// The annotations for these attributes that are missing or different: a daemon patches nothing
    /// else.
    pub(super) fn changes(&self, attributes: &Attributes, present: &Annotations) -> Annotations {
        let data = |data: &Option<String>| data.clone().unwrap_or_else(|| NO_DATA.to_owned());
        let kind = attributes.backend_type.as_str();
        // A tunnel of these backends without data does not exist.
        let tunnels = matches!(kind, "vxlan" | "wireguard");
        let mut wanted = Annotations::from([
            (self.name("kube-subnet-manager"), "true".to_owned()),
            (self.name("backend-type"), kind.to_owned()),
        ]);
        if attributes.public_ip != Ipv4Addr::UNSPECIFIED && (attributes.backend_data.is_some() || !tunnels) {
            let overwritten: Option<Ipv4Addr> = self.address(present, "public-ip-overwrite");
            let public = overwritten.unwrap_or(attributes.public_ip);
            wanted.insert(self.name("backend-data"), data(&attributes.backend_data));
            wanted.insert(self.name("public-ip"), public.to_string());
        }
        let dual = matches!(kind, "host-gw" | "extension") || tunnels && attributes.backend_v6_data.is_some();
        if let Some(address) = attributes.public_ipv6.filter(|_| dual) {
            let overwritten: Option<Ipv6Addr> = self.address(present, "public-ipv6-overwrite");
            wanted.insert(self.name("backend-v6-data"), data(&attributes.backend_v6_data));
            wanted.insert(self.name("public-ipv6"), overwritten.unwrap_or(address).to_string());
        }
        wanted.retain(|name, value| present.get(name) != Some(value));
        wanted
    }

    /// The attributes of another node, for the families of its subnets; an error text if they are
    /// invalid.
    pub(super) fn attributes(
        &self,
        annotations: &Annotations,
        v4: bool,
        v6: bool,
    ) -> Result<Attributes, String> {
        let needed = |last: &str| {
            self.value(annotations, last).ok_or_else(|| format!("annotation {} is missing", self.name(last)))
        };
        let wrong = |last: &str| format!("annotation {} is no address", self.name(last));
        let data = |last: &str| self.data(annotations, last);
        let public_ip = match v4 {
            true => needed("public-ip")?.parse().map_err(|_| wrong("public-ip"))?,
            false => Ipv4Addr::UNSPECIFIED,
        };
        let public_ipv6 = match v6 {
            true => Some(needed("public-ipv6")?.parse().map_err(|_| wrong("public-ipv6"))?),
            false => None,
        };
        Ok(Attributes {
            public_ip,
            public_ipv6,
            backend_type: self.value(annotations, "backend-type").unwrap_or_default().to_owned(),
            backend_data: if v4 { data("backend-data")? } else { None },
            backend_v6_data: if v6 { data("backend-v6-data")? } else { None },
        })
    }

    fn data(&self, annotations: &Annotations, last: &str) -> Result<Option<String>, String> {
        let Some(text) = self.value(annotations, last).filter(|text| *text != NO_DATA) else {
            return Ok(None);
        };
        match serde_json::from_str::<serde::de::IgnoredAny>(text) {
            Ok(_) => Ok(Some(russet_model::flannel::compact_json(text))),
            Err(error) => Err(format!("annotation {} is no JSON: {error}", self.name(last))),
        }
    }
}

impl FromStr for AnnotationPrefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let mut prefix = text.to_owned();
        if !prefix.contains('/') {
            prefix.push('/');
        }
        if !prefix.ends_with(['/', '-']) {
            prefix.push('-');
        }
        match prefix.split_once('/') {
            Some((domain, rest)) if is_domain(domain) && is_beginning(rest) => Ok(Self(prefix)),
            _ => Err(PrefixError(text.to_owned())),
        }
    }
}

impl Default for AnnotationPrefix {
    fn default() -> Self {
        Self(format!("{DEFAULT_PREFIX}/"))
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-')
}

/// Like flannel's check, which tests the end only: `Foo.bar` passes.
fn is_domain(text: &str) -> bool {
    text.rsplit_once('.').is_some_and(|(head, last)| {
        !last.is_empty() && last.bytes().all(is_plain) && head.bytes().last().is_some_and(is_plain)
    })
}

/// Whether the text is empty or ends in `-`, without a second `/`.
fn is_beginning(text: &str) -> bool {
    text.is_empty() || text.len() > 1 && text.ends_with('-') && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VTEP: &str = r#"{"VNI":1,"VtepMAC":"32:fc:b5:dc:f0:38"}"#;

    fn vxlan() -> Attributes {
        Attributes {
            public_ip: "10.0.0.1".parse().unwrap(),
            public_ipv6: None,
            backend_type: "vxlan".to_owned(),
            backend_data: Some(VTEP.to_owned()),
            backend_v6_data: None,
        }
    }

    fn named(prefix: &AnnotationPrefix, values: &[(&str, &str)]) -> Annotations {
        values.iter().map(|(last, value)| (prefix.name(last), (*value).to_owned())).collect()
    }

    #[test]
    fn prefixes_are_completed_and_checked_as_flannel_does() {
        // flannel.md section 5.1.
        let name =
            |text: &str| text.parse::<AnnotationPrefix>().map(|prefix| prefix.name("backend-type")).ok();
        for (text, wanted) in [
            ("flannel.alpha.coreos.com", "flannel.alpha.coreos.com/backend-type"),
            ("foo.bar/", "foo.bar/backend-type"),
            ("foo.bar/baz", "foo.bar/baz-backend-type"),
            ("foo.bar/baz-", "foo.bar/baz-backend-type"),
            ("Foo.bar", "Foo.bar/backend-type"),
        ] {
            assert_eq!(name(text).as_deref(), Some(wanted), "{text}");
        }
        for text in
            ["nodots", "", "a.b/c/d", "foo.bar/Baz", "foo.Bar", ".bar", "foo.", "foo.bar/-", "foo.bar/b z"]
        {
            assert_eq!(name(text), None, "{text}");
        }
        assert_eq!(AnnotationPrefix::default(), DEFAULT_PREFIX.parse().unwrap());
    }

    #[test]
    fn a_vxlan_node_has_four_annotations_byte_for_byte_and_only_what_differs_is_patched() {
        // flannel.md sections 5.1, 5.2 step 5.
        let prefix = AnnotationPrefix::default();
        let all = prefix.changes(&vxlan(), &Annotations::new());
        let wanted = [
            ("kube-subnet-manager", "true"),
            ("backend-type", "vxlan"),
            ("backend-data", VTEP),
            ("public-ip", "10.0.0.1"),
        ];
        assert_eq!(all, named(&prefix, &wanted));
        assert_eq!(prefix.changes(&vxlan(), &all), Annotations::new());
        let mut moved = vxlan();
        moved.public_ip = "10.0.0.2".parse().unwrap();
        assert_eq!(prefix.changes(&moved, &all), named(&prefix, &[("public-ip", "10.0.0.2")]));
    }

    #[test]
    fn t49_kube_a_backend_without_data_writes_null() {
        // flannel.md section 10, T49; 5.1.
        let prefix = AnnotationPrefix::default();
        for kind in ["host-gw", ""] {
            let plain = Attributes { backend_type: kind.to_owned(), backend_data: None, ..vxlan() };
            let written = prefix.changes(&plain, &Annotations::new());
            assert_eq!(prefix.value(&written, "backend-data"), Some("null"), "{kind}");
            assert_eq!(written[&prefix.name("backend-type")], kind);
            let read = prefix.attributes(&written, true, false).unwrap();
            assert_eq!(read, plain);
        }
    }

    #[test]
    fn an_overwrite_is_published_instead_of_the_address_unless_it_is_invalid() {
        // flannel.md section 5.1: public-ip-overwrite; garbage would cut the node off.
        let prefix = AnnotationPrefix::default();
        let public = |overwrite: &str| {
            let present = named(&prefix, &[("public-ip-overwrite", overwrite)]);
            prefix.changes(&vxlan(), &present)[&prefix.name("public-ip")].clone()
        };
        assert_eq!(public("198.51.100.7"), "198.51.100.7");
        assert_eq!(public("not-an-address"), "10.0.0.1");
        assert_eq!(public(""), "10.0.0.1");
    }

    #[test]
    fn dual_stack_adds_two_annotations_and_a_tunnel_without_an_end_none() {
        let prefix = AnnotationPrefix::default();
        let v6 = Some("fd00::1".parse().unwrap());
        let dual = Attributes { public_ipv6: v6, backend_v6_data: Some(VTEP.to_owned()), ..vxlan() };
        let written = prefix.changes(&dual, &named(&prefix, &[("public-ipv6-overwrite", "2001:db8::7")]));
        assert_eq!(written.len(), 6);
        assert_eq!(prefix.value(&written, "public-ipv6"), Some("2001:db8::7"));
        let only_v6 = Attributes { public_ip: Ipv4Addr::UNSPECIFIED, backend_data: None, ..dual.clone() };
        let written = prefix.changes(&only_v6, &Annotations::new());
        assert_eq!((written.len(), prefix.value(&written, "backend-data")), (4, None));
        let without_end = Attributes { backend_v6_data: None, ..dual.clone() };
        assert_eq!(prefix.changes(&without_end, &Annotations::new()).len(), 4);
        let udp = Attributes { backend_type: String::new(), ..dual };
        assert_eq!(prefix.changes(&udp, &Annotations::new()).len(), 4);
    }

    #[test]
    fn the_stored_attributes_are_parsed_tolerantly() {
        // flannel.md section 5.1, last paragraph: real daemons split text; blanks and other orders would lose the MAC there, not here.
        let prefix: AnnotationPrefix = "foo.bar/baz".parse().unwrap();
        let stored = prefix.stored(&named(
            &prefix,
            &[
                ("backend-data", r#"{ "VtepMAC": "32:FC:b5:dc:f0:38", "VNI": 1 }"#),
                ("node-public-ip", "10.0.0.9"),
                ("node-public-ipv6", "x"),
            ],
        ));
        assert_eq!(stored.vteps[0].unwrap().mac.to_string(), "32:fc:b5:dc:f0:38");
        assert_eq!((stored.public_ip, stored.public_ipv6), ("10.0.0.9".parse().ok(), None));
        assert_eq!(prefix.stored(&Annotations::new()), Stored::default());
        assert_eq!(prefix.stored(&named(&prefix, &[("backend-data", "null")])).vteps, [None; 2]);
    }

    #[test]
    fn invalid_attributes_of_a_peer_are_refused_with_a_reason() {
        let prefix = AnnotationPrefix::default();
        let good = [("public-ip", "10.0.0.2"), ("backend-type", "vxlan"), ("backend-data", VTEP)];
        assert!(prefix.attributes(&named(&prefix, &good), true, false).is_ok());
        for (last, value, why) in [
            ("public-ip", "x", "is no address"),
            ("public-ip", "", "is missing"),
            ("backend-data", "{", "is no JSON"),
        ] {
            let mut said = named(&prefix, &good);
            said.insert(prefix.name(last), value.to_owned());
            let error = prefix.attributes(&said, true, false).unwrap_err();
            assert!(error.contains(&format!("flannel.alpha.coreos.com/{last} {why}")), "{error}");
        }
        assert!(
            prefix.attributes(&named(&prefix, &good), true, true).is_err(),
            "dual stack without an IPv6 address"
        );
    }
}
