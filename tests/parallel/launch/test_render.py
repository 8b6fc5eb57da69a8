"""Files for clusters are complete: nothing is left to fill in, and the command is quoted once."""

import shlex
import subprocess

import pytest
import yaml

from transformer_jax.cli.main import main
from transformer_jax.core.errors import ConfigError
from transformer_jax.parallel.launch.render import KINDS, Cluster, render

COMMAND = ["transformer-jax", "train", "small", "--data.source", "a b's $HOME.txt", "--resume"]
CASES = {
    "slurm": Cluster("h200:8", 4, options={"partition": "gpu", "account": "me"}),
    "slurm-tasks": Cluster("h100:4", 2, tasks=4),
    "slurm-cpu": Cluster("cpu"),
    "jobset": Cluster("h200:8", 2, options={"image": "a.b/c:1", "volume-claim": "runs"}),
    "jobset-tpu": Cluster("v5e:4x4", options={"image": "a.b/c:1", "volume-claim": "runs"}),
    "tpu-vm": Cluster("v5p:2x2x2", options={"zone": "us-east1-a", "nfs": "10.0.0.2:/runs"}),
    "tpu-vm-alone": Cluster("v5e:2x4", options={"zone": "us-east1-a"}),
    "skypilot": Cluster("h200:8", 2, options={"bucket": "gs://runs"}),
}


def rendered(case):
    return render(case.removesuffix("-tasks").removesuffix("-cpu").removesuffix("-tpu")
                  .removesuffix("-alone"), COMMAND, CASES[case])  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_complete_and_holds_the_command_once(case):
    text = rendered(case)
    assert text.count(shlex.join(COMMAND)) == 1
    for left in ("TODO", "<", "None", "YOUR", "{name}", "{command}"):
        assert left not in text.replace("<<", "").replace('< "$crashes"', "").replace(
            "2> /dev/null", ""
        ), left
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith(("slurm", "tpu-vm"))])
def test_a_script_is_one_of_bash(case, tmp_path):
    (tmp_path / "file").write_text(rendered(case))
    subprocess.run(["bash", "-n", tmp_path / "file"], check=True, timeout=30)


def test_the_script_of_slurm_warns_requeues_and_starts_one_task_a_node():
    text = rendered("slurm")
    for line in ("--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=h200:8", "--requeue",
                 "--signal=USR1@300", "--partition=gpu", "--account=me"):  # fmt: skip
        assert f"#SBATCH {line}\n" in text
    assert "--ntasks-per-node=4\n" in rendered("slurm-tasks")
    assert "gpus" not in rendered("slurm-cpu")
    assert "JAX_PLATFORMS=cpu" in rendered("slurm-cpu")


def test_the_command_reaches_the_program_as_it_was_given(tmp_path):
    """The line of srun, run by bash with a program that prints its arguments."""
    line = next(line for line in rendered("slurm").splitlines() if line.startswith("srun "))
    shell = f'srun() {{ shift 3; printf "%s\\n" "$@"; }}; {line}'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines() == COMMAND


@pytest.mark.parametrize(("case", "nodes"), [("jobset", 2), ("jobset-tpu", 4)])
def test_a_jobset_numbers_its_processes_and_shares_a_disk(case, nodes):
    made = yaml.safe_load(rendered(case))
    assert made["kind"] == "JobSet"
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["parallelism"] == job["completions"] == nodes
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    values = {one["name"]: one.get("value") for one in container["env"]}
    assert values["JAX_COORDINATOR_ADDRESS"] == "transformer-jax-node-0-0.transformer-jax:8476"
    assert values["JAX_NUM_PROCESSES"] == str(nodes)
    assert "JAX_PROCESS_ID" in values
    assert shlex.split(container["command"][2]) == ["exec", *COMMAND]
    expected = {"nvidia.com/gpu": 8} if case == "jobset" else {"google.com/tpu": 4}
    assert container["resources"]["limits"] == expected
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "runs"
    assert ("nodeSelector" in pod) == (case == "jobset-tpu")


def test_a_task_of_skypilot_joins_its_nodes():
    made = yaml.safe_load(rendered("skypilot"))
    assert made["num_nodes"] == 2
    assert made["resources"]["accelerators"] == "H200:8"
    assert made["file_mounts"]["/shared"]["source"] == "gs://runs"
    assert "JAX_COORDINATOR_ADDRESS=$(echo" in made["run"]


def test_a_slice_of_several_machines_mounts_a_disk():
    assert "--accelerator-type=v5p-16" in rendered("tpu-vm")
    assert "10.0.0.2:/runs" in rendered("tpu-vm")
    assert "--accelerator-type=v5litepod-8" in rendered("tpu-vm-alone")
    with pytest.raises(ConfigError, match="2 machines need a disk that they share: --nfs"):
        render("tpu-vm", COMMAND, Cluster("v5p:2x2x2", options={"zone": "a"}))


@pytest.mark.parametrize(
    ("kind", "cluster", "said"),
    [
        ("slurm", Cluster("h300:8"), "--plan h300:8: there are cpu, a100:N"),
        ("slurm", Cluster("h200"), "h200:1 to h200:16"),
        ("slurm", Cluster("v5e:4x4"), "SLURM has no TPUs"),
        ("slurm", Cluster("h200:8", tasks=3), "--tasks-per-node is 3: 1, or 8"),
        ("slurm", Cluster("h200:8", time="soon"), "--time 'soon'"),
        ("slurm", Cluster("h200:8", time="8"), "--warning is 300: at most half of --time"),
        ("slurm", Cluster("h200:8", name="a b"), "--name 'a b'"),
        ("slurm", Cluster("h200:8", options={"partition": "a\nb"}), "--partition"),
        ("slurm", Cluster("h200:8", 0), "--nodes is 0"),
        ("slurm", Cluster("h200:8", options={"zone": "a"}), "--zone does not go with --render"),
        ("jobset", Cluster("h200:8"), "also needs --image .*; --volume-claim"),
        ("jobset", Cluster("v5e:4x4", 2, options={"image": "a", "volume-claim": "b"}), "has 4"),
        ("tpu-vm", Cluster("h200:8", options={"zone": "a"}), "needs a TPU slice"),
        ("tpu-vm", Cluster("v5e:4", options={"zone": "a"}), "the shape of a slice"),
        ("skypilot", Cluster("v5e:4x4", options={"bucket": "gs://a"}), "see tpu-vm and jobset"),
        ("pbs", Cluster("h200:8"), "--render pbs: there are slurm, jobset, tpu-vm, skypilot"),
    ],
)
def test_what_no_cluster_knows_is_refused(kind, cluster, said):
    with pytest.raises(ConfigError, match=said) as error:
        render(kind, COMMAND, cluster)
    assert "\n" not in str(error.value)


BREAKS = ["\n", "\r", "\x1b", "\x7f", "\x85", "\u2028", "\u2029", "\udcff"]


@pytest.mark.parametrize("case", ["slurm", "jobset", "tpu-vm", "skypilot"])
@pytest.mark.parametrize("character", BREAKS)
def test_a_line_end_in_the_command_is_refused(case, character):
    with pytest.raises(ConfigError, match="the command after -- holds a line end"):
        render(case, ["train", f"a{character}b"], CASES[case])


@pytest.mark.parametrize("character", BREAKS)
@pytest.mark.parametrize("folder", ["folder", "programs"])
def test_a_line_end_in_the_name_of_a_folder_is_refused(tmp_path, monkeypatch, character, folder):
    place = tmp_path / f"a{character}touch pwned"
    if folder == "folder":
        place.mkdir()
        monkeypatch.chdir(place)
    else:
        monkeypatch.setattr("sys.executable", str(place / "python"))
    with pytest.raises(ConfigError, match="folder holds a line end"):
        render("slurm", COMMAND, CASES["slurm"])
    assert COMMAND[0] in render("jobset", COMMAND, CASES["jobset"])


@pytest.mark.parametrize("field", ["partition", "account", "qos", "constraint"])
@pytest.mark.parametrize("value", ["a\nb", "a\n", "a;b", "a\u2028b", "a b", "$(a)", ""])
def test_options_are_names(field, value):
    with pytest.raises(ConfigError, match=f"--{field}"):
        render("slurm", COMMAND, Cluster("cpu", options={field: value}))


@pytest.mark.parametrize("value", ["1:00:00\n", "\u0661:00:00", "1:00:00\nrm"])
def test_times_and_names_are_plain(value):
    with pytest.raises(ConfigError, match="--time"):
        render("slurm", COMMAND, Cluster("cpu", time=value))
    with pytest.raises(ConfigError, match="--name"):
        render("slurm", COMMAND, Cluster("cpu", name=value))


def test_the_command_prints_the_file(capsys):
    given = ["launch", "--render", "slurm", "--nodes", "2", "--plan", "h200:8", "--restarts", "3"]
    assert main([*given, "--", "train", "phrasebook"]) == 0
    out, err = capsys.readouterr()
    assert "transformer-jax train phrasebook --resume\n" in out
    assert err == ""
    assert main(["launch", "--render", "slurm", "--", "train", "small"]) == 2
    assert "--render slurm needs --plan" in capsys.readouterr().err
    assert main(["launch", "--nodes", "2", "--", "train", "small"]) == 2
    assert "--nodes is for a file for a cluster: add --render" in capsys.readouterr().err
    assert set(KINDS) == {"slurm", "jobset", "tpu-vm", "skypilot"}


def test_a_plan_of_several_machines_is_one_of_train_too():
    """``launch --plan`` takes the targets of ``train --plan``, with the same devices."""
    from transformer_jax.parallel.device_catalog import plan_target

    words = ["train", "small"]
    assert render("slurm", words, Cluster("h200:2x8")) == render(
        "slurm", words, Cluster("h200:8", 2)
    )
    assert plan_target("h200:2x8").number == plan_target("h200:16").number == 16
    with pytest.raises(ConfigError, match=r"--nodes is 3: h200:2x8 is 2 machines"):
        render("slurm", words, Cluster("h200:2x8", 3))
