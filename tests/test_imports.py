"""Imports point inwards only, and nothing that runs needs another framework."""

import ast
import functools
from pathlib import Path

from transformer_jax.recipes.registry import RECIPES

PACKAGE = Path(__file__).parents[1] / "transformer_jax"
FILES = sorted(PACKAGE.rglob("*.py"))
# The order of the rings, from the innermost: each imports itself and earlier ones alone. A module
# named with its folder has a place of its own for all that import it from elsewhere.
ORDER = (
    ("core",),
    ("functional",),
    ("models.config",
     "models.presets",
     "models.recurrent_config"),
    ("models.costs", "models.layers"),
    ("models",),
    ("data",),
    ("parallel",),
    ("decoding",),
    ("runs",),
    ("evaluation", "word_vectors"),
    ("visual",),
    ("training",),
    ("interop",),
    ("inference.facts", "recipes.recipe", "recipes.registry"),
    ("inference",),
    ("recipes",),
    ("planning",),
    ("laboratory",),
    ("laws",),
    ("doctor",),
    ("exercises",),
    ("lectures",),
    ("cli",),
)  # fmt: skip
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
# Pure rings know nothing but what is listed, however far inwards more would lie.
RINGS = {
    "core": {"core"},
    "functional": {"core", "functional"},
    "models": {"core", "functional", "models"},
    "data": {"core", "functional", "data"},
    "parallel": {"core", "functional", "models", "parallel"},
    "decoding": {"core", "functional", "models", "data", "parallel", "decoding"},
    "laws": {"core", "functional", "decoding", "laws"},
}
# The application brings the library to users of a command line and of stored runs; the library,
# which researchers import, knows nothing of it.
LIBRARY = {
    "core", "functional", "models", "data", "parallel", "decoding", "runs", "evaluation",
    "training", "interop", "laws",
}  # fmt: skip
APPLICATION = {
    "word_vectors", "visual", "recipes", "inference", "planning", "laboratory", "doctor",
    "exercises", "lectures", "cli",
}  # fmt: skip
FORBIDDEN = {"torch", "transformers", "tensorflow", "pickle", "cloudpickle", "dill"}


@functools.cache
def imported(path):
    """The modules that a file imports, in functions and for type checkers too."""
    return list(_imports(path))


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def place(name):
    """The ring of a module, below the package, or None for the package itself."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in LEVEL:
            return ".".join(parts[:length])
    return None


def test_imports_point_inwards():
    for path in FILES:
        where = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        ring = place(where)
        for name in imported(path):
            top, _, rest = name.partition(".")
            assert top not in FORBIDDEN, f"{where} imports {name}"
            assert top != "experiments", f"{where} imports an entry point"
            found = place(rest)
            if top != "transformer_jax" or found is None or where == "__init__":
                continue
            own, other = where.split(".")[0], rest.split(".")[0]
            assert other in RINGS.get(own, {other}), f"{where}: {own} must not import {name}"
            assert own == other or LEVEL[found] <= LEVEL[ring], f"{where} must not import {name}"


def upward(where, names):
    """The steps up among the names that a module of the library reaches."""
    if where.split(".")[0] not in LIBRARY:
        return []
    parts = [name.split(".") for name in names if name.startswith("transformer_jax.")]
    return [".".join(up) for up in parts if up[1] not in LIBRARY and not up[1].startswith("__")]


def reached(path):
    """The imports of a file, and names read from the package, which offers both floors."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [*_imports(path), *(ast.unparse(one) for one in nodes if isinstance(one, ast.Attribute))]


def test_the_library_never_imports_the_application():
    """In functions and for type checkers neither."""
    assert {name.split(".")[0] for name in LEVEL} == LIBRARY | APPLICATION
    assert not LIBRARY & APPLICATION
    for path in FILES:
        where = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        found = upward(where, reached(path))
        assert not found, f"{where}, of the library, imports {', '.join(found)}"


def test_a_step_up_would_be_noticed(tmp_path):
    """Wherever in a file it stands."""
    file = tmp_path / "one.py"
    lines = (
        "from transformer_jax.visual import figures",
        "import transformer_jax.cli.main",
        "def f():\n    from transformer_jax.recipes.registry import RECIPES",
        "if TYPE_CHECKING:\n    from transformer_jax.inference import base",
        "from transformer_jax import load",
        "import transformer_jax\n\ntransformer_jax.load('run')",
    )
    for line in lines:
        file.write_text(line)
        assert upward("training.trainer", reached(file)), line
        assert not upward("doctor.checks", reached(file)), line
    file.write_text("from transformer_jax import __version__, laws")
    assert not upward("training.trainer", reached(file))


def module_names():
    """The files of the package by the names that import them."""
    names = (".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in FILES)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, FILES, strict=True)}


def circles(graph):
    """The modules on circles of imports, and those between two circles."""
    left = {name: others & graph.keys() - {name} for name, others in graph.items()}
    while True:
        used = set().union(*left.values())
        kept = {name: others & left.keys() for name, others in left.items() if name in used}
        kept = {name: others for name, others in kept.items() if others}
        if kept == left:
            return sorted(left)
        left = kept


def test_no_module_imports_itself_through_others():
    """Imports of functions and of type checkers count as well."""
    modules = module_names()
    # The public names of the package are read from their modules, which know nothing of it.
    graph = {name: {*imported(path)} for name, path in modules.items() if name != "transformer_jax"}
    assert circles(graph) == []


def test_circles_would_be_noticed():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert circles(graph) == ["b", "c"]
    assert circles(graph | {"c": {"d"}}) == []


def test_every_ring_has_its_place():
    there = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert there - {"__init__", "__main__"} <= set(LEVEL)


def test_the_rule_would_notice():
    assert LEVEL["interop"] > LEVEL["training"] > LEVEL["models"]
    assert "transformer_jax.functional.masks" in set(
        imported(PACKAGE / "models/transformer/layers.py")
    )
    assert len(FILES) > 20


def closure(*modules):
    """The modules that are imported with some, those of functions and of type checkers apart."""
    seen, left = set(), [f"transformer_jax.{name}" for name in modules]
    while left:
        path = PACKAGE.parent / (left.pop().replace(".", "/") + ".py")
        if not path.exists() or path in seen:
            continue
        seen.add(path)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                left += [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return {path.relative_to(PACKAGE).as_posix().removesuffix(".py") for path in seen}


def test_training_a_translator_imports_no_other_kind():
    """Neither its recipe nor its task imports what other kinds of training need."""
    found = closure(
        *("cli.seq2seq", "recipes.driver", "recipes.translation"),
        "recipes.tasks.translation_task",
    )
    assert len(found) > 80
    others = ("data/speech/", "data/chat/", "inference/encoding/", "interop/", "models/vision",
              "models/ngram", "training/on_policy", "training/preference_objectives")  # fmt: skip
    assert not [name for name in found if name.startswith(others)]
    kinds = {name.removeprefix("transformer_jax.").replace(".", "/") for name in RECIPES.values()}
    assert found & kinds == {"recipes/translation"}
    tasks = {name for name in found if name.startswith("recipes/tasks/") and "_task" in name}
    assert tasks == {"recipes/tasks/translation_task"}


def test_the_trainer_knows_no_model():
    """It trains any module, so that it imports no layer and no model."""
    found = {name for name in closure("training.trainer") if name.startswith("models/layers/")}
    assert found == {"models/layers/parameters", "models/layers/surgery"}


HEAVY = {"jax", "flax", "optax", "sacrebleu"}
# Names for which jaxtyping imports JAX.
OF_JAX = {"Array", "ArrayLike", "DTypeLike", "PRNGKeyArray", "PyTree", "Scalar", "ScalarLike"}


def heavy_imports(*modules):
    """Heavy packages that are imported with some modules."""
    found = set()
    for name in closure(*modules):
        for node in ast.parse((PACKAGE / f"{name}.py").read_text()).body:
            imported = [node.module] if isinstance(node, ast.ImportFrom) else []
            imported += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            found |= {module.partition(".")[0] for module in imported} & HEAVY
            if imported == ["jaxtyping"] and {one.name for one in node.names} & OF_JAX:
                found.add("jax")
    return found


def test_named_runs_are_listed_without_jax():
    """``train --help`` and tab completion read recipes, which say at once what there is."""
    recipes = {module.removeprefix("transformer_jax.") for module in RECIPES.values()}
    assert heavy_imports("cli.training", *recipes) == set()


def test_files_of_outputs_are_scored_without_jax():
    assert heavy_imports("cli.score_file", "cli.compare") == {"sacrebleu"}
