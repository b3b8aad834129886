//! Paths of records in URLs of the v2 API, and values in forms. Pure.

use std::fmt::Write as _;

use russet_model::{Key, Prefix};

/// The prefix of all keys in URLs.
const ROOT: &str = "/v2/keys";

/// The URL path of a record, or why the v2 API cannot store it there. The API has a tree of
/// directories and cleans paths, so keys that are different in v3 would become the same: `a//b`,
/// `a/../b`. Segments that begin with `_` are hidden from every listing and watch.
pub(crate) fn of_key(key: &Key) -> Result<String, &'static str> {
    let path = key.as_str();
    let Some(segments) = path.strip_prefix('/') else { return Err("it does not begin with '/'") };
    for segment in segments.split('/') {
        match segment {
            "" => return Err("it has an empty part, which the v2 API drops"),
            "." | ".." => return Err("it has a part '.' or '..', which the v2 API resolves"),
            _ if segment.starts_with('_') => {
                return Err("it has a part that begins with '_', which the v2 API hides");
            }
            _ => {}
        }
    }
    Ok(escaped(ROOT, path))
}

/// The URL path of the directory that contains all keys of a prefix: the API lists directories, not
/// prefixes.
pub(crate) fn of_directory(prefix: &Prefix) -> String {
    let text = prefix.as_str();
    let directory = text.rfind('/').map_or("", |slash| &text[..slash]);
    if directory.is_empty() { format!("{ROOT}/") } else { escaped(ROOT, directory) }
}

/// `name=value`, escaped for a form.
pub(crate) fn form(name: &str, value: &str) -> String {
    let mut text = format!("{name}=");
    escape(&mut text, value, |_| false);
    text
}

fn escaped(root: &str, path: &str) -> String {
    let mut text = root.to_owned();
    escape(&mut text, path, |byte| matches!(byte, b'/' | b':'));
    text
}

/// Escapes all bytes except unreserved ones (RFC 3986) and those for which `stays` is true.
fn escape(into: &mut String, text: &str, stays: impl Fn(u8) -> bool) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') || stays(byte) {
            into.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(into, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(key: &str) -> Result<String, &'static str> {
        of_key(&Key::from_stored(key))
    }

    #[test]
    fn a_key_is_escaped_once_for_the_url() {
        // calico-cni.md section 2.2.3: the stored key itself has `%2f` in it.
        let path = path("/calico/v1/host/n1/workload/cni/a%2fb/endpoint/eth 0?x").unwrap();
        assert_eq!(path, "/v2/keys/calico/v1/host/n1/workload/cni/a%252fb/endpoint/eth%200%3Fx");
        assert_eq!(form("value", "a+b &=é"), "value=a%2Bb%20%26%3D%C3%A9");
    }

    #[test]
    fn a_key_that_the_api_would_change_or_hide_is_refused() {
        for key in ["/a//b", "/a/../b", "/a/.", "/a/_b", "/a/b/", "a", "/"] {
            assert!(path(key).is_err(), "{key}");
        }
    }

    #[test]
    fn a_prefix_is_listed_by_the_directory_that_contains_it() {
        let directory = |prefix: &str| of_directory(&Prefix::from_stored(prefix));
        assert_eq!(directory("/calico/ipam/v2/host/node1/"), "/v2/keys/calico/ipam/v2/host/node1");
        assert_eq!(directory("/coreos.com/network/subnets"), "/v2/keys/coreos.com/network");
        assert_eq!(directory("/"), "/v2/keys/");
        assert_eq!(directory(""), "/v2/keys/");
    }
}
