//! Other people's programs as the second opinion. One that is missing fails the test and is named.

use std::path::PathBuf;
use std::process::Command;

/// The path of a program; panics where it is not installed, because a second opinion that is silently left out is none.
#[track_caller]
pub fn require_tool(name: &str) -> PathBuf {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    // A test's PATH often lacks the places where network tools live.
    let places = std::env::split_paths(&paths).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("the tool {name:?} is not installed and this test needs it"))
}

/// The path of one of the reference CNI plugins, the Go ones, where Debian or their own releases install them.
#[track_caller]
pub fn require_cni_plugin(name: &str) -> PathBuf {
    let places = ["/usr/lib/cni", "/opt/cni/bin"].map(PathBuf::from);
    let found = places.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("the CNI plugin {name:?} is in none of {places:?} and this test needs it"))
}

/// Runs a program and returns its standard output; panics with its standard error where it fails.
#[track_caller]
pub fn run(name: &str, args: &[&str]) -> String {
    let output = Command::new(require_tool(name))
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("run {name} {}: {error}", args.join(" ")));
    assert!(
        output.status.success(),
        "{name} {}: {}: {}",
        args.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// [`run`] for a command that is split at its blanks.
#[track_caller]
pub fn sh(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    run(words[0], &words[1..])
}

/// Whether a command that is split at its blanks ends with success.
#[track_caller]
pub fn succeeds(command: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(require_tool(words[0])).args(&words[1..]).output();
    output.unwrap_or_else(|error| panic!("run {command}: {error}")).status.success()
}

/// The JSON array that a command prints, which is split at its blanks; empty where it prints nothing.
#[track_caller]
pub fn sh_json(command: &str) -> Vec<serde_json::Value> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let printed = json(words[0], &[], &words[1..]);
    printed.as_array().cloned().unwrap_or_default()
}

/// Runs a program in a named namespace; panics where it fails.
#[track_caller]
pub fn inside(netns: &str, command: &[&str]) -> String {
    run("ip", &[&["netns", "exec", netns], command].concat())
}

/// Whether one ping from a named namespace is answered.
pub fn pings(netns: &str, to: &str) -> bool {
    pings_with(netns, &[to])
}

/// [`pings`] with more arguments, which end with the address.
pub fn pings_with(netns: &str, arguments: &[&str]) -> bool {
    let ping = ["netns", "exec", netns, "ping", "-n", "-c", "1", "-W", "2"];
    let output = Command::new(require_tool("ip")).args(ping).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

/// The names of the links in the calling thread's namespace or a named one, sorted.
#[track_caller]
pub fn links(netns: Option<&str>) -> Vec<String> {
    let place: Vec<&str> = netns.iter().flat_map(|name| ["-n", *name]).collect();
    let links = ip_json(&[&place[..], &["link"]].concat());
    let links = links.as_array().into_iter().flatten();
    let mut names: Vec<String> =
        links.filter_map(|link| link["ifname"].as_str().map(str::to_owned)).collect();
    names.sort();
    names
}

/// What `ip -d -j ARGS` prints; null where it prints nothing.
#[track_caller]
pub fn ip_json(args: &[&str]) -> serde_json::Value {
    json("ip", &["-d", "-j"], args)
}

/// What `nft -j ARGS` prints; null where it prints nothing.
#[track_caller]
pub fn nft_json(args: &[&str]) -> serde_json::Value {
    json("nft", &["-j"], args)
}

#[track_caller]
fn json(name: &str, options: &[&str], args: &[&str]) -> serde_json::Value {
    let text = run(name, &[options, args].concat());
    if text.trim().is_empty() {
        return serde_json::Value::Null;
    }
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name} printed no JSON: {error}: {text}"))
}

#[cfg(test)]
mod tests {
    #[test]
    #[should_panic(expected = "the tool \"no-such-tool\" is not installed")]
    fn a_missing_tool_is_a_failure_that_names_it() {
        super::require_tool("no-such-tool");
    }

    #[test]
    #[should_panic(expected = "sh -c echo why >&2; exit 3: exit status: 3: why")]
    fn a_tool_that_fails_is_a_failure_with_its_words() {
        super::run("sh", &["-c", "echo why >&2; exit 3"]);
    }

    #[test]
    #[ignore = "tool: ip, nft; root"]
    fn both_tools_speak_json() {
        crate::in_new_netns(|| {
            assert_eq!(super::ip_json(&["link"])[0]["ifname"], "lo");
            assert!(super::nft_json(&["list", "ruleset"])["nftables"].is_array());
        });
    }
}
