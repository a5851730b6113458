"""Dataclasses as the standard library makes them, at a third of the time: it compiles six methods for each of them.

A short command takes longer to make its few hundred classes than to answer. Here a method that is the same for all
classes is one function, comparisons read all fields at once, and only `__init__` is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # what editors and type checkers know
else:
    import dataclasses
    from operator import attrgetter
    from reprlib import recursive_repr

    def dataclass(cls=None, /, *, repr=True, eq=True, frozen=False, slots=False, kw_only=False, **others):
        """As `dataclasses.dataclass`, with its settings: the same fields, parameters, methods and errors.

        Args:
            cls: the class; None where settings are given.
            repr: add `__repr__`.
            eq: add `__eq__`, and `__hash__` where fields are frozen.
            frozen: fields cannot be set.
            slots: add `__slots__`, which makes a new class.
            kw_only: fields are given by name.
            others: settings of the standard library, which makes such classes itself.
        """
        settings = {"repr": repr, "eq": eq, "frozen": frozen, "slots": slots, "kw_only": kw_only}

        def made(cls):
            return dataclasses.dataclass(**settings, **others)(cls) if others or _unusual(cls) else _made(cls, settings)

        return made if cls is None else made(cls)

    def _unusual(cls):
        """Whether a class brings methods of dataclasses of its own, as few do."""
        names = ("__init__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__", "__setstate__")
        return any(name in cls.__dict__ for name in names)

    def _made(cls, settings):
        """The class with its fields, and the methods that its settings ask for."""
        slots, kw_only = settings["slots"], settings["kw_only"]
        # What inherits from frozen classes has to be frozen for the standard library.
        inherits = settings["frozen"] and any("__dataclass_fields__" in base.__dict__ for base in cls.__mro__[1:])
        bare = {"init": False, "repr": False, "eq": False, "frozen": inherits}
        own_repr = "__repr__" in cls.__dict__
        cls = dataclasses.dataclass(**bare, slots=slots, kw_only=kw_only)(cls)
        fields = dataclasses.fields(cls)
        parameters = cls.__dataclass_params__
        parameters.init = True
        parameters.repr, parameters.eq, parameters.frozen = (settings[name] for name in ("repr", "eq", "frozen"))
        cls.__init__ = _init(cls, fields, frozen=parameters.frozen)
        if parameters.repr and not own_repr:
            cls.__repr__ = _repr(cls, [field.name for field in fields if field.repr])
        if parameters.eq:
            _compare(cls, fields, frozen=parameters.frozen)
        if parameters.frozen and not inherits:
            cls.__setattr__, cls.__delattr__ = _set, _delete
        if parameters.frozen and slots:
            cls.__getstate__, cls.__setstate__ = _state, _set_state
        return cls

    def _init(cls, fields, *, frozen):
        """`__init__`, the only method whose text is compiled."""
        names = {"__set": object.__setattr__, "__made": _MADE}
        given, keywords, lines = [], [], []
        for field in fields:
            name, default, value = field.name, "", field.name
            if field.default is not dataclasses.MISSING:
                default, names[f"__default_{name}"] = f"=__default_{name}", field.default
                value = name if field.init else f"__default_{name}"
            elif field.default_factory is not dataclasses.MISSING:
                default, names[f"__default_{name}"] = "=__made", field.default_factory
                value = f"__default_{name}() if {name} is __made else {name}" if field.init else f"__default_{name}()"
            elif not field.init:
                continue  # `__post_init__` sets it
            if field.init:
                (keywords if field.kw_only else given).append(name + default)
            lines.append(f"  __set(self, {name!r}, {value})" if frozen else f"  self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            lines.append("  self.__post_init__()")
        arguments = ", ".join(["self", *given, *(["*", *keywords] if keywords else [])])
        text = "\n".join([f"def __init__({arguments}):", *(lines or ["  pass"])])
        exec(text, names)  # of the names of fields alone
        init = _named(names["__init__"], "__init__", cls)
        init.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
        return init

    class _Made:
        def __repr__(self):
            return "<factory>"

    _MADE = _Made()
    """Default of a field that is made anew for each object."""

    def _repr(cls, names):
        @recursive_repr()
        def shown(self):
            return f"{type(self).__qualname__}({', '.join([f'{name}={getattr(self, name)!r}' for name in names])})"

        return _named(shown, "__repr__", cls)

    def _compare(cls, fields, *, frozen):
        compared = _values([field.name for field in fields if field.compare])
        hashed = _values([field.name for field in fields if (field.compare if field.hash is None else field.hash)])

        def equal(self, other):
            return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

        def code(self):
            return hash(hashed(self))

        cls.__eq__ = _named(equal, "__eq__", cls)
        cls.__hash__ = _named(code, "__hash__", cls) if frozen else None

    def _named(method, name, cls):
        method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
        return method

    def _values(names):
        """Reads the values of some fields as a tuple."""
        if len(names) > 1:
            return attrgetter(*names)
        return lambda self: tuple([getattr(self, name) for name in names])

    def _set(self, name, value):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def _delete(self, name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def _state(self):
        return [getattr(self, field.name) for field in dataclasses.fields(self)]

    def _set_state(self, state):
        for field, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, field.name, value)
