//! The demo as an ordinary user: inside a user namespace, as its root.

use std::sync::atomic::{AtomicBool, Ordering};

use super::DemoError;

static INSIDE: AtomicBool = AtomicBool::new(false);

/// Becomes root of a user namespace, unless the process is root already. Must run before any thread
/// exists.
pub fn become_root() -> Result<(), DemoError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    russet_linux::userns::become_root().map_err(|source| {
        let advice = "create a user namespace (run the demo as root, or allow user namespaces: \
                      sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)";
        DemoError::io(advice, source)
    })?;
    INSIDE.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether the demo is in a user namespace of its own, which ends with the demo, so that nothing
/// can be kept.
pub fn is_inside() -> bool {
    INSIDE.load(Ordering::Relaxed)
}

/// The command prefix that opens a shell in a namespace.
pub fn enter_command() -> String {
    if is_inside() {
        format!("nsenter --preserve-credentials -U -m -t {} ip netns exec", std::process::id())
    } else {
        "ip netns exec".to_owned()
    }
}
