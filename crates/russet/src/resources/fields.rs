//! The allowed members of each resource, so that a misspelt one is an error that names the right
//! one instead of a setting without effect.

use serde_json::{Map, Value};

use super::Problems;

/// A member: its name and its type.
pub struct Field(pub &'static str, pub Shape);

/// The type of a member. Null always means absent.
pub enum Shape {
    /// A string.
    Text,
    /// True or false.
    Flag,
    /// An integer.
    Number,
    /// A number.
    Decimal,
    /// A string or an integer, as ports and protocols are.
    TextOrNumber,
    /// An object whose values are strings.
    Labels,
    /// Anything.
    Any,
    /// An object with these members.
    Object(&'static [Field]),
    /// A list of this type.
    List(&'static Shape),
}

use Shape::{Any, Decimal, Flag, Labels, List, Number, Object, Text, TextOrNumber};

/// The members of every resource's metadata. `status` differs by kind.
const METADATA: &[Field] = &[
    Field("name", Text),
    Field("generateName", Text),
    Field("namespace", Text),
    Field("labels", Labels),
    Field("annotations", Labels),
    Field("uid", Text),
    Field("resourceVersion", TextOrNumber),
    Field("creationTimestamp", Text),
    Field("deletionTimestamp", Text),
    Field("deletionGracePeriodSeconds", Number),
    Field("generation", Number),
    Field("finalizers", List(&Text)),
    Field("ownerReferences", List(&Any)),
    Field("managedFields", List(&Any)),
    Field("selfLink", Text),
];

const ENVELOPE: &[Field] = &[
    Field("apiVersion", Text),
    Field("kind", Text),
    Field("metadata", Object(METADATA)),
    Field("spec", Any),
    Field("status", Any),
];

/// Reports members that a resource cannot have.
pub fn check(resource: &Map<String, Value>, spec: &[Field], status: &[Field], problems: &mut Problems) {
    members("", resource, ENVELOPE, problems);
    for (part, fields) in [("spec", spec), ("status", status)] {
        match resource.get(part) {
            Some(Value::Object(found)) => members(part, found, fields, problems),
            None | Some(Value::Null) => {}
            Some(other) => problems.add(part, &format!("an object is wanted, not {other:.60}")),
        }
    }
}

fn members(at: &str, found: &Map<String, Value>, fields: &[Field], problems: &mut Problems) {
    for (name, value) in found {
        let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        match fields.iter().find(|Field(known, _)| known == name) {
            Some(Field(_, shape)) => shape.check(&path, value, problems),
            None => problems.add(&path, &unknown(name, fields)),
        }
    }
}

fn unknown(name: &str, fields: &[Field]) -> String {
    let known = || fields.iter().map(|Field(known, _)| *known);
    match nearest(name, known()) {
        Some(near) => format!("there is no such field; did you mean {near}?"),
        None => format!("there is no such field; there are {}", known().collect::<Vec<_>>().join(", ")),
    }
}

/// The known word that `name` is most likely a misspelling of.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // One wrong letter in three, or two in a short word; with more it is another word.
    let tolerated = (name.chars().count() / 3).max(2);
    let far = |word: &str| distance(&name.to_lowercase(), &word.to_lowercase());
    let (far, word) = known.map(|word| (far(word), word)).min()?;
    (far <= tolerated).then_some(word)
}

/// The edit distance: how many letters are inserted, removed or replaced.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let exchanged = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = exchanged.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

// === impl Shape ===

impl Shape {
    fn check(&self, path: &str, value: &Value, problems: &mut Problems) {
        let mut wanted = |what: &str| problems.add(path, &format!("{what} is wanted, not {}", shown(value)));
        match (self, value) {
            (_, Value::Null)
            | (Any, _)
            | (Text | TextOrNumber, Value::String(_))
            | (Flag, Value::Bool(_)) => {}
            (Number | TextOrNumber, Value::Number(number)) if !number.is_f64() => {}
            (Decimal, Value::Number(_)) => {}
            (Labels, Value::Object(labels)) => {
                for (name, value) in labels {
                    Text.check(&format!("{path}.{name}"), value, problems);
                }
            }
            (Object(fields), Value::Object(found)) => members(path, found, fields, problems),
            (List(shape), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    shape.check(&format!("{path}[{index}]"), item, problems);
                }
            }
            (Text, _) => wanted("a string"),
            (Flag, _) => wanted("true or false"),
            (Number, _) => wanted("an integer"),
            (Decimal, _) => wanted("a number"),
            (TextOrNumber, _) => wanted("a string or an integer"),
            (Labels | Object(_), _) => wanted("an object"),
            (List(_), _) => wanted("a list"),
        }
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SPEC: &[Field] = &[
        Field("natOutgoing", Flag),
        Field("blockSize", Number),
        Field("rules", List(&Object(&[Field("action", Text), Field("protocol", TextOrNumber)]))),
        Field("labelsToApply", Labels),
    ];

    fn problems(spec: Value) -> String {
        let resource = json!({ "kind": "X", "metadata": { "name": "x" }, "spec": spec });
        let mut problems = Problems::default();
        check(resource.as_object().unwrap(), SPEC, &[], &mut problems);
        problems.to_string()
    }

    #[test]
    fn valid_members_pass() {
        let rules = json!([{ "action": "Allow", "protocol": 6 }, { "protocol": "TCP" }, {}]);
        let spec =
            json!({ "natOutgoing": true, "blockSize": null, "rules": rules, "labelsToApply": { "a/b": "" } });
        assert_eq!(problems(spec), "");
    }

    #[test]
    fn an_unknown_field_is_an_error_that_names_the_nearest_one() {
        assert_eq!(
            problems(json!({ "natOutgoin": true })),
            "spec.natOutgoin: there is no such field; did you mean natOutgoing?"
        );
        assert_eq!(
            problems(json!({ "nat_outgoing": true, "rules": [{}, { "acton": "Deny" }] })),
            "spec.nat_outgoing: there is no such field; did you mean natOutgoing?; \
             spec.rules[1].acton: there is no such field; did you mean action?"
        );
        let far = problems(json!({ "bandwidth": 1 }));
        assert!(far.ends_with("there are natOutgoing, blockSize, rules, labelsToApply"), "{far}");
    }

    #[test]
    fn a_value_of_the_wrong_type_is_reported_with_its_path() {
        let spec = json!({ "natOutgoing": "yes", "blockSize": 1.5, "rules": { "action": 1 }, "labelsToApply": { "zone": 1 } });
        assert_eq!(
            problems(spec),
            "spec.natOutgoing: true or false is wanted, not \"yes\"; spec.blockSize: an integer is wanted, not 1.5; \
             spec.rules: a list is wanted, not {\"action\":1}; spec.labelsToApply.zone: a string is wanted, not 1"
        );
    }

    #[test]
    fn the_distance_counts_edited_letters() {
        for (a, b, far) in
            [("", "", 0), ("cidr", "cidr", 0), ("cdir", "cidr", 2), ("cidrs", "cidr", 1), ("", "ab", 2)]
        {
            assert_eq!(distance(a, b), far, "{a} {b}");
        }
    }
}
