//! JSON as YAML: the same members in the same order, numbers digit by digit (sizes of IPv6 pools fit no machine number).

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// An object's members in their order.
struct Members(Vec<(String, Box<RawValue>)>);

struct InOrder;

/// `json` in block style. A scalar is spelled as in JSON, which YAML reads likewise.
pub fn of_json(json: &str) -> String {
    let mut text = String::new();
    match serde_json::from_str::<Box<RawValue>>(json) {
        Ok(value) => value_into(&mut text, &value, 0),
        // It was made a moment ago; should it be no JSON, it is shown as it is.
        Err(_) => text.push_str(json),
    }
    text.trim_start_matches('\n').to_owned()
}

/// Writes what follows `key:` or `-`, with its newline.
fn value_into(text: &mut String, value: &RawValue, indent: usize) {
    let raw = value.get();
    let padding = " ".repeat(indent);
    if let Ok(Members(members)) = serde_json::from_str(raw)
        && !members.is_empty()
    {
        text.push('\n');
        for (name, value) in members {
            let name = if is_plain(&name) { name } else { serde_json::Value::from(name).to_string() };
            text.push_str(&format!("{padding}{name}:"));
            value_into(text, &value, indent + 2);
        }
    } else if let Ok(items) = serde_json::from_str::<Vec<Box<RawValue>>>(raw)
        && !items.is_empty()
    {
        text.push('\n');
        for item in items {
            text.push_str(&format!("{padding}-"));
            value_into(text, &item, indent + 2);
        }
    } else {
        text.push_str(&format!(" {raw}\n"));
    }
}

/// Whether a name can stand without quotes, and is not read as anything else.
fn is_plain(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
            .contains(&name.to_lowercase().as_str())
}

// === impl Members ===

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder)
    }
}

impl<'de> Visitor<'de> for InOrder {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"schema":1,"usage":[{"cidr":"fd00::/48","total":1208925819614629174706176,"affinity":null},{"on":"a: b\n","empty":{},"none":[]}],"nested":[["x"],[]]}"#;

    #[test]
    fn yaml_says_what_json_says() {
        let text = of_json(JSON);
        assert!(text.starts_with("schema: 1\nusage:\n  -\n    cidr: \"fd00::/48\"\n"), "{text}");
        assert!(text.contains("    total: 1208925819614629174706176\n"), "{text}");
        let json = JSON.replace("1208925819614629174706176", "7");
        let read: serde_json::Value = russet_kube::yaml::from_slice(of_json(&json).as_bytes()).unwrap();
        let wanted: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read, wanted);
    }
}
