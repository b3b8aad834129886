//! Turns `proto/` into Rust without `protoc`, as `store-etcd` does.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let services = ["containers", "content", "diff", "images", "leases", "snapshots", "tasks"];
    let files = services.map(|service| format!("proto/{service}.proto"));
    let descriptors = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().build_server(false).build_transport(false).compile_fds(descriptors)?;
    Ok(())
}
