//! What the API server checks before it stores an object: names, the schemas of some custom
//! resources, and members that a schema lacks (kubernetes.md sections 1.3 and 1.5).

use serde_json::Value;

use super::answers::Answer;
use super::kinds::Kind;

/// Limit of a name.
const NAME_MAX_BYTES: usize = 253;

/// Refuses a name that is not an RFC 1123 subdomain.
pub(crate) fn name(kind: Kind, name: &str) -> Result<(), Answer> {
    let label = |label: &str| {
        let ends = |at: Option<char>| at.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        ends(label.chars().next())
            && ends(label.chars().next_back())
            && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if name.len() <= NAME_MAX_BYTES && name.split('.').all(label) {
        return Ok(());
    }
    let problem = format!(
        "Invalid value: {name:?}: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
         start and end with an alphanumeric character"
    );
    Err(Answer::invalid(kind, name, "metadata.name", "FieldValueInvalid", &problem))
}

/// Applies the schema of a custom resource: required members and their types.
pub(crate) fn schema(kind: Kind, object: &mut Value) -> Result<(), Answer> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let required: &[&str] = match kind.kind {
        "IPAMBlock" => &["cidr", "strictAffinity", "allocations", "unallocated", "attributes"],
        "IPAMHandle" => &["handleID", "block"],
        "IPAMConfig" => &["strictAffinity", "autoAllocateBlocks"],
        "BlockAffinity" if kind.version == "v1" => &["state", "node", "cidr", "deleted"],
        "BlockAffinity" => &["state", "node", "cidr"],
        _ => &[],
    };
    for member in required {
        if object["spec"][*member].is_null() {
            let field = format!("spec.{member}");
            return Err(Answer::invalid(kind, &name, &field, "FieldValueRequired", "Required value"));
        }
    }
    if kind.kind == "BlockAffinity" && kind.version == "v1" && !object["spec"]["deleted"].is_string() {
        let problem = "Invalid value: \"boolean\": spec.deleted in body must be of type string: \"boolean\"";
        return Err(Answer::invalid(kind, &name, "spec.deleted", "FieldValueTypeInvalid", problem));
    }
    let attributes = object["spec"]["attributes"].as_array();
    if kind.kind == "IPAMBlock" && attributes.is_some_and(|list| list.iter().any(Value::is_null)) {
        return Err(Answer::invalid(
            kind,
            &name,
            "spec.attributes[0]",
            "FieldValueRequired",
            "Required value",
        ));
    }
    // A null that the schema does not permit is dropped.
    let spec = object.get_mut("spec").and_then(Value::as_object_mut);
    if let Some(spec) = spec.filter(|_| kind.is_custom()) {
        spec.retain(|_, value| !value.is_null());
    }
    Ok(())
}

/// Drops the members of `spec` that the schema lacks, and returns the warnings.
pub(crate) fn prune(lacking: &[(String, String)], kind: Kind, object: &mut Value) -> Vec<String> {
    let mut warnings = Vec::new();
    for (_, member) in lacking.iter().filter(|(plural, _)| plural == kind.plural) {
        let spec = object["spec"].as_object_mut();
        if spec.and_then(|spec| spec.shift_remove(member)).is_some() {
            warnings.push(format!("299 - \"unknown field \\\"spec.{member}\\\"\""));
        }
    }
    warnings
}
