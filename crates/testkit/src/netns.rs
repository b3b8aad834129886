//! A network namespace for each test.

use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

use crate::tool::run;

/// Runs `body` on a thread of its own inside new network and mount namespaces, so that nothing reaches the host and
/// nothing is left. Threads and processes that it starts are inside, too.
///
/// `/sys` shows the new network, and `/run/netns` is empty and private. Loopback is down, as in every new namespace.
/// A panic of `body` is the test's.
pub fn in_new_netns<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    // Output and skips name the thread, that is the test.
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    std::thread::scope(|scope| {
        let inside = || {
            unshare();
            body()
        };
        let thread = std::thread::Builder::new().name(name).spawn_scoped(scope, inside);
        thread.expect("start a thread").join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// [`in_new_netns`] with loopback up, as on a node.
pub fn in_netns_with_loopback<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    in_new_netns(|| {
        run("ip", &["link", "set", "lo", "up"]);
        body()
    })
}

fn unshare() {
    // SAFETY: changes which network and mounts this thread sees, no memory and no file descriptor.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS) }
        .expect("unshare(CLONE_NEWNET | CLONE_NEWNS): kernel tests run as root");
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .expect("make mounts private");
    mount("sysfs", "/sys");
    std::fs::create_dir_all("/run/netns").expect("create /run/netns");
    mount("tmpfs", "/run/netns");
}

fn mount(kind: &str, target: &str) {
    rustix::mount::mount(kind, target, kind, MountFlags::empty(), None::<&std::ffi::CStr>)
        .unwrap_or_else(|error| panic!("mount {kind} at {target}: {error}"));
}

#[cfg(test)]
mod tests {
    use russet_linux::NetNs;

    #[test]
    #[ignore = "kernel: unshare(CLONE_NEWNET | CLONE_NEWNS) needs root"]
    fn the_body_sees_only_its_own_network() {
        let home = NetNs::current().unwrap();
        let seen = super::in_new_netns(|| {
            assert!(!home.same_as(&NetNs::current().unwrap()));
            NetNs::create_named("inner").unwrap();
            std::fs::read_dir("/sys/class/net").unwrap().count()
        });
        assert_eq!(seen, 1, "only lo");
        assert!(home.same_as(&NetNs::current().unwrap()));
        assert!(NetNs::open_named("inner").is_err());
    }

    #[test]
    #[ignore = "kernel: unshare(CLONE_NEWNET | CLONE_NEWNS) needs root"]
    fn a_panic_of_the_body_is_the_tests() {
        let result = std::panic::catch_unwind(|| super::in_new_netns(|| panic!("on purpose")));
        assert_eq!(result.unwrap_err().downcast_ref::<&str>(), Some(&"on purpose"));
    }
}
