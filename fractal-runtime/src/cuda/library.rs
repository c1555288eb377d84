//! Finds and loads NVIDIA's libraries: environment -> candidate paths -> a loaded library, or where it was looked for.
//!
//! cudarc panics when the driver's library is missing, so nothing of it is called before [`driver`] has succeeded. A
//! library that is loaded here from an unusual folder is found by cudarc under its short name, because the loader keeps
//! one copy of a library.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

use super::error::CudaError;

/// The newest of the driver functions that are used through cudarc, which panics where one is missing; the others are as
/// old as CUDA 11.
const DRIVER_FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceGetDefaultMemPool",
    "cuGraphInstantiateWithFlags",
    "cuGraphKernelNodeGetParams_v2",
    "cuKernelGetFunction",
    "cuLaunchKernelEx",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemPoolSetAttribute",
    "cuModuleLoadData",
    "cuStreamBeginCapture_v2",
    "cuTensorMapEncodeTiled",
];

/// Folders to search, in order. Made from the environment once, or by hand in tests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// `FRACTAL_NVRTC`: a library or a folder. When set, nothing else is searched.
    pub explicit: Option<PathBuf>,
    /// `FRACTAL_CUDA_INCLUDE`: the folder of `cuda_fp16.h`.
    pub include: Option<PathBuf>,
    /// Folders before the loader's own search.
    pub early: Vec<PathBuf>,
    /// Roots of toolkits and of Python packages, after it.
    pub roots: Vec<PathBuf>,
}

impl Places {
    pub(crate) fn from_env() -> Places {
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let list = |name: &str| std::env::var_os(name).map(|v| std::env::split_paths(&v).collect()).unwrap_or(vec![]);
        let mut roots: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path).collect();
        roots.push("/usr/local/cuda".into());
        let mut versions = children(Path::new("/usr/local"), |name| name.starts_with("cuda-"));
        versions.reverse();
        roots.extend(versions);
        roots.extend(list("PYTHONPATH"));
        // Where pip installs to: the environment that is active, the one of the first python3, and the user's own.
        let first_python = list("PATH").into_iter().find(|folder| folder.join("python3").is_file());
        let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path);
        let prefixes = prefixes.chain(first_python.and_then(|bin| Some(bin.parent()?.to_path_buf())));
        for prefix in prefixes.chain(path("HOME").map(|home| home.join(".local"))) {
            for lib in ["lib", "local/lib"] {
                let pythons = children(&prefix.join(lib), |name| name.starts_with("python3"));
                let packages = pythons.iter().flat_map(|python| ["site", "dist"].map(|kind| (python, kind)));
                roots.extend(packages.map(|(python, kind)| python.join(format!("{kind}-packages"))));
            }
            roots.push(prefix);
        }
        // The usual place is named in a message even if it is not there.
        roots.retain(|root| root.is_dir() || root == Path::new("/usr/local/cuda"));
        Places {
            explicit: path("FRACTAL_NVRTC"),
            include: path("FRACTAL_CUDA_INCLUDE"),
            early: list("LD_LIBRARY_PATH"),
            roots,
        }
    }
}

/// Where a library lies below the root of a toolkit or of `site-packages`.
const BELOW_ROOT: &[&str] = &[
    "lib64",
    "lib",
    "nvidia/cu13/lib",
    "nvidia/cuda_nvrtc/lib",
    "nvidia/cublas/lib",
    "targets/x86_64-linux/lib",
    "lib/x86_64-linux-gnu",
];

/// Paths in `folder` whose file name passes, sorted.
fn children(folder: &Path, passes: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = folder.read_dir() else { return vec![] };
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().and_then(OsStr::to_str).is_some_and(&passes))
        .collect();
    paths.sort();
    paths
}

fn is_nvrtc(name: &str) -> bool {
    name.starts_with("libnvrtc.so") || (name.starts_with("nvrtc64_") && name.ends_with(".dll"))
}

fn is_builtins(name: &str) -> bool {
    (name.starts_with("libnvrtc-builtins.so") || name.starts_with("nvrtc-builtins64_")) && !name.contains("alt")
}

/// A library of the toolkit: how its files are named.
struct Wanted {
    /// The variable that names it or its folder.
    variable: &'static str,
    /// Names that the loader resolves, newest first.
    short: [&'static str; 3],
    is: fn(&str) -> bool,
}

const NVRTC: Wanted = Wanted {
    variable: "FRACTAL_NVRTC",
    short: if cfg!(windows) {
        ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64.dll"]
    } else {
        ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    },
    is: is_nvrtc,
};

const CUBLASLT: Wanted = Wanted {
    variable: "FRACTAL_CUBLASLT",
    short: if cfg!(windows) {
        ["cublasLt64_13.dll", "cublasLt64_12.dll", "cublasLt64.dll"]
    } else {
        ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"]
    },
    is: |name| name.starts_with("libcublasLt.so") || (name.starts_with("cublasLt64_") && name.ends_with(".dll")),
};

/// The libraries of one folder, newest first.
fn wanted_in(folder: &Path, wanted: &Wanted) -> Vec<PathBuf> {
    let mut found = children(folder, wanted.is);
    found.reverse();
    found
}

/// What to try, in order: paths of files that exist, and short names that the loader resolves; and, for a message, the
/// folders and roots that were searched.
pub(crate) fn nvrtc_candidates(places: &Places) -> (Vec<PathBuf>, Vec<String>) {
    candidates(places, places.explicit.as_deref(), &NVRTC)
}

/// As [`nvrtc_candidates`], for cuBLASLt; `FRACTAL_CUBLASLT` names it or its folder.
pub(crate) fn cublaslt_candidates(places: &Places) -> (Vec<PathBuf>, Vec<String>) {
    let explicit = std::env::var_os(CUBLASLT.variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    candidates(places, explicit.as_deref(), &CUBLASLT)
}

fn candidates(places: &Places, explicit: Option<&Path>, wanted: &Wanted) -> (Vec<PathBuf>, Vec<String>) {
    let mut candidates = Vec::new();
    let mut looked = Vec::new();
    let below =
        |root: &Path| BELOW_ROOT.iter().flat_map(|below| wanted_in(&root.join(below), wanted)).collect::<Vec<_>>();
    if let Some(explicit) = explicit {
        looked.push(format!("{} ({})", explicit.display(), wanted.variable));
        if explicit.is_dir() {
            candidates.extend(wanted_in(explicit, wanted));
            candidates.extend(below(explicit));
        } else {
            candidates.push(explicit.to_path_buf());
        }
        return (candidates, looked);
    }
    for folder in &places.early {
        looked.push(folder.display().to_string());
        candidates.extend(wanted_in(folder, wanted));
    }
    candidates.extend(wanted.short.iter().map(PathBuf::from));
    looked.extend(wanted.short.iter().map(|name| name.to_string()));
    for root in &places.roots {
        looked.push(root.display().to_string());
        candidates.extend(below(root));
    }
    (candidates, looked)
}

/// Loads an NVRTC, and before it the library of its built-ins that lies beside it: NVRTC asks the loader for that one by
/// a short name, which fails for a folder the loader does not know.
///
/// The libraries stay loaded until the process ends.
pub(crate) fn load_nvrtc(path: &Path) -> Result<&'static Library, String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    for builtins in folder.map(|folder| children(folder, is_builtins)).unwrap_or_default() {
        if let Ok(library) = load(&builtins) {
            Box::leak(Box::new(library));
        }
    }
    load(path).map(|library| &*Box::leak(Box::new(library)))
}

/// Loads a cuBLASLt, until the process ends.
pub(crate) fn load_cublaslt(path: &Path) -> Result<&'static Library, String> {
    load(path).map(|library| &*Box::leak(Box::new(library)))
}

fn load(path: &Path) -> Result<Library, String> {
    // SAFETY: loading runs the library's initialisers. Only names of NVIDIA's driver, compiler and cuBLASLt are passed,
    // or a path that the user names in FRACTAL_NVRTC or FRACTAL_CUBLASLT.
    unsafe { Library::new(path) }.map_err(|error| match std::error::Error::source(&error) {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    })
}

/// Where a library that was loaded under a short name lies, if the system tells.
pub(crate) fn path_of_loaded(short: &Path) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let stem = short.to_str()?.split(".so").next()?.to_owned() + ".so";
    maps.lines()
        .filter_map(|line| Some(Path::new(line.get(line.find('/')?..)?)))
        .find(|path| path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(&stem)))
        .map(Path::to_path_buf)
}

/// The folder of CUDA's headers that belongs to an NVRTC: named by the environment, or beside the library.
pub(crate) fn include_folder(places: &Places, nvrtc: &Path) -> Option<PathBuf> {
    let holds = |folder: &PathBuf| folder.join("cuda_fp16.h").is_file();
    if let Some(include) = &places.include {
        return Some(include.clone());
    }
    let folder = nvrtc.parent()?;
    ["../include", "../../include", "../../cuda_runtime/include", "../targets/x86_64-linux/include"]
        .iter()
        .map(|relative| folder.join(relative))
        .filter_map(|folder| folder.canonicalize().ok())
        .find(holds)
}

/// Loads the CUDA driver once for the process and checks that it has what is used of it.
pub(crate) fn driver() -> Result<(), CudaError> {
    static DRIVER: OnceLock<Result<(), CudaError>> = OnceLock::new();
    DRIVER.get_or_init(load_driver).clone()
}

fn load_driver() -> Result<(), CudaError> {
    let mut candidates: Vec<PathBuf> =
        if cfg!(windows) { vec!["nvcuda.dll".into()] } else { vec!["libcuda.so.1".into(), "libcuda.so".into()] };
    if cfg!(target_os = "linux") {
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib"];
        let folders = folders.into_iter().chain(["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"]);
        candidates.extend(folders.map(|folder| Path::new(folder).join("libcuda.so.1")));
    }
    let mut reasons = Vec::new();
    for candidate in &candidates {
        match load(candidate) {
            Ok(library) => return check_driver(Box::leak(Box::new(library)), candidate),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(CudaError::NoDriver {
        looked: candidates.iter().map(|path| path.display().to_string()).collect(),
        reason: reasons.into_iter().next().unwrap_or_default(),
    })
}

fn check_driver(library: &'static Library, path: &Path) -> Result<(), CudaError> {
    let missing = |name: &&&str| {
        // SAFETY: the symbol is looked up and never called or read through this type.
        unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err()
    };
    let symbols: Vec<_> = DRIVER_FUNCTIONS.iter().filter(missing).map(|name| name.to_string()).collect();
    if symbols.is_empty() {
        Ok(())
    } else {
        Err(CudaError::DriverLacks { library: path.display().to_string(), symbols })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"").unwrap();
    }

    #[test]
    fn an_explicit_library_is_the_only_candidate() {
        let places = Places {
            explicit: Some("/nowhere/libnvrtc.so.13".into()),
            early: vec!["/usr/lib".into()],
            ..Places::default()
        };
        let (candidates, looked) = nvrtc_candidates(&places);
        assert_eq!(candidates, [PathBuf::from("/nowhere/libnvrtc.so.13")]);
        assert_eq!(looked, ["/nowhere/libnvrtc.so.13 (FRACTAL_NVRTC)"]);
    }

    #[test]
    fn site_packages_are_searched_and_the_newest_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("nvidia/cuda_nvrtc/lib");
        for name in ["libnvrtc.so.11.2", "libnvrtc.so.12", "libnvrtc-builtins.so.12.8", "libnvrtc.alt.so.12"] {
            touch(&folder.join(name));
        }
        let places = Places { explicit: Some(root.path().into()), ..Places::default() };
        let (candidates, looked) = nvrtc_candidates(&places);
        assert_eq!(candidates, [folder.join("libnvrtc.so.12"), folder.join("libnvrtc.so.11.2")]);
        assert_eq!(looked, [format!("{} (FRACTAL_NVRTC)", root.path().display())]);
    }

    #[test]
    fn the_loaders_own_search_stands_between_the_folders() {
        let early = tempfile::tempdir().unwrap();
        let late = tempfile::tempdir().unwrap();
        touch(&early.path().join("libnvrtc.so.12"));
        touch(&late.path().join("lib64/libnvrtc.so.13"));
        let places = Places { early: vec![early.path().into()], roots: vec![late.path().into()], ..Places::default() };
        let (candidates, looked) = nvrtc_candidates(&places);
        assert_eq!(candidates.first(), Some(&early.path().join("libnvrtc.so.12")));
        assert_eq!(candidates.last(), Some(&late.path().join("lib64/libnvrtc.so.13")));
        assert_eq!(looked[1], if cfg!(windows) { "nvrtc64_130_0.dll" } else { "libnvrtc.so.13" });
    }

    #[test]
    fn headers_are_found_beside_the_library() {
        let root = tempfile::tempdir().unwrap();
        let library = root.path().join("lib/libnvrtc.so.13");
        touch(&library);
        assert_eq!(include_folder(&Places::default(), &library), None);
        touch(&root.path().join("include/cuda_fp16.h"));
        let found = include_folder(&Places::default(), &library).unwrap();
        assert_eq!(found, root.path().join("include").canonicalize().unwrap());
        let places = Places { include: Some("/elsewhere".into()), ..Places::default() };
        assert_eq!(include_folder(&places, &library), Some("/elsewhere".into()));
    }
}
