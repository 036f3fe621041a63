"""The verbs by frame: English parts, German parts, subject kinds, object kinds.

"|" marks a separable German prefix or a movable English particle, "+" a fixed English one. Regular
verbs are their base form alone.
"""

from collections.abc import Callable

from transformer_jax.grammar import english, german
from transformer_jax.grammar.lexicon_entries import Verb


def _frame(frame: str) -> Callable[..., Verb]:
    """A reader of a verb of the frame; `prep` is like "for auf acc", `aux` haben or sein."""

    def read(
        en: str,
        de: str,
        subject: str,
        object: str = "",
        *,
        prep: str = "",
        aux: str = "haben",
        **more: str,
    ) -> Verb:
        preposition = tuple(prep.split()) or ("", "", "")
        return Verb(
            frame,
            english.verb(en),
            german.verb(de, aux),
            subject,
            object,
            reflexive=frame.startswith("reflexive"),
            preposition=preposition,  # type: ignore[arg-type]
            **more,
        )

    return read


# Nothing else: Das Kind schläft.
v = _frame("intransitive")
INTRANSITIVE = (
    v("sleep slept slept", "schlafen schläft schlief geschlafen", "person animal"),
    v("laugh", "lachen", "person"),
    v("cry", "weinen", "person"),
    v("smile", "lächeln lächelt lächelte gelächelt", "person"),
    v("work", "arbeiten", "adult kin name"),
    v("dance", "tanzen", "person"),
    v("sing sang sung", "singen singt sang gesungen", "person flier -plane -duck"),
    v("shout", "schreien schreit schrie geschrien", "person"),
    v("swim swam swum", "schwimmen schwimmt schwamm geschwommen", "person swimmer", aux="sein"),
    v("jump", "springen springt sprang gesprungen", "person animal", aux="sein"),
    v("fly flew flown", "fliegen fliegt flog geflogen", "flier", aux="sein"),
    v("cough", "husten", "person"),
    v("sneeze", "niesen", "person"),
    v("smoke", "rauchen", "adult kin name"),
    v("arrive", "an|kommen kommt kam angekommen", "person public", aux="sein", aspect="event"),
    v("wake|up woke woken", "auf|wachen", "person animal", aux="sein", aspect="routine"),
    v("get|up got gotten", "auf|stehen steht stand aufgestanden", "person", aux="sein",
      aspect="routine"),
    v("fall|asleep fell fallen", "ein|schlafen schläft schlief eingeschlafen", "person animal",
      aux="sein", aspect="routine"),
    v("come|back came come", "zurück|kommen kommt kam zurückgekommen", "person pet", aux="sein",
      aspect="event"),
    v("disappear", "verschwinden verschwindet verschwand verschwunden", "person animal thing",
      aux="sein", aspect="event"),
    v("die", "sterben stirbt starb gestorben", "animal", aux="sein",
      aspect="event"),
)  # fmt: skip

# An accusative object: Der Mann kauft das Auto.
v = _frame("transitive")
TRANSITIVE = (
    v("buy bought bought", "kaufen", "person -youngster",
      "thing clothes vehicle furniture food drink house -public"),
    v("sell sold sold", "verkaufen", "person -youngster",
      "thing clothes vehicle furniture food house -public"),
    v("need", "brauchen", "person", "thing clothes vehicle furniture official -public",
      aspect="state"),
    v("find found found", "finden findet fand gefunden", "person",
      "thing clothes animal mistake answer", aspect="event"),
    v("lose lost lost", "verlieren verliert verlor verloren", "person", "thing clothes -device",
      aspect="event"),
    v("look+for", "suchen", "person", "thing clothes animal person -name"),
    v("steal stole stolen", "stehlen stiehlt stahl gestohlen", "criminal man woman boy monkey",
      "thing vehicle clothes food -public"),
    v("hide hid hidden", "verstecken", "person dog", "thing"),
    v("carry", "tragen trägt trug getragen", "person donkey",
      "luggage ladder table chair machine cupboard tent"),
    v("repair", "reparieren", "person", "vehicle device roof gate door chair bed"),
    v("wash", "waschen wäscht wusch gewaschen", "person", "clothes car truck produce bus"),
    v("clean", "putzen", "person", "room window mirror lamp -garage"),
    v("open", "öffnen", "person", "opening luggage bottle letter museum -basket"),
    v("close", "schließen schließt schloss geschlossen", "person",
      "opening luggage book cupboard -basket"),
    v("paint", "malen", "person", "art flower tree animal boat bridge -photo -song"),
    v("build built built", "bauen", "person",
      "house bridge tower boat castle machine table bed school hospital"),
    v("break broke broken", "zerbrechen zerbricht zerbrach zerbrochen", "person cat monkey",
      "fragile", aspect="event"),
    v("fill", "füllen", "person", "vessel bag basket"),
    v("use", "benutzen", "person", "machine tool telephone camera bicycle car"),
    v("draw drew drawn", "zeichnen", "person", "animal tree house map flower"),
    v("photograph", "fotografieren", "person", "animal sight person mountain lake -name"),
    v("describe", "beschreiben beschreibt beschrieb beschrieben", "person",
      "art sight machine thief -song"),
    v("wear wore worn", "tragen trägt trug getragen", "person", "clothes ring"),
    v("try|on", "an|probieren", "person", "clothes ring"),
    v("eat ate eaten", "essen isst aß gegessen", "person", "food"),
    v("drink drank drunk", "trinken trinkt trank getrunken", "person", "drink"),
    v("cook", "kochen", "person", "cooked -sausage"),
    v("bake", "backen backt backte gebacken", "person", "baked"),
    v("order", "bestellen", "adult kin name", "dish drink cheese book -water"),
    v("taste", "probieren", "person", "food wine beer juice tea"),
    v("peel", "schälen", "person", "potato apple carrot pear orange"),
    v("read read read", "lesen liest las gelesen", "person", "text -bill"),
    v("write wrote written", "schreiben schreibt schrieb geschrieben", "person",
      "text -newspaper -magazine -form -contract"),
    v("translate", "übersetzen übersetzt übersetzte übersetzt", "adult kin name",
      "text speech song -bill -form -newspaper -magazine"),
    v("sign", "unterschreiben unterschreibt unterschrieb unterschrieben", "adult kin name",
      "contract form letter report postcard bill"),
    v("pay paid paid", "bezahlen", "adult kin name", "bill waiter mechanic carpenter gardener"),
    v("see saw seen", "sehen sieht sah gesehen", "person",
      "person animal vehicle building town outside film picture", aspect="event"),
    v("hear heard heard", "hören", "person animal",
      "song noise dog wolf radio singer question train", aspect="event"),
    v("know knew known", "kennen kennt kannte gekannt", "person",
      "person town building song answer rule secret story -kin -neutral", aspect="state"),
    v("love", "lieben", "person", "person pet town island language chocolate cheese",
      aspect="state"),
    v("hate", "hassen", "person", "war noise exam school city thief mouse", aspect="state"),
    v("admire", "bewundern bewundert bewunderte bewundert", "person",
      "artist writer fighter expert queen princess sight art work", aspect="state"),
    v("understand understood understood", "verstehen versteht verstand verstanden", "person",
      "matter text film person -name -form -bill -song", aspect="state"),
    v("visit", "besuchen", "person", "person sight city museum school"),
    v("meet met met", "treffen trifft traf getroffen", "person", "person", aspect="routine"),
    v("greet", "begrüßen", "person", "person"),
    v("kiss", "küssen", "person", "youngster kin prince princess king queen"),
    v("hug", "umarmen umarmt umarmte umarmt", "person", "person -expert"),
    v("praise", "loben", "person -youngster", "person dog work plan"),
    v("punish", "bestrafen", "adult father mother", "youngster criminal soldier dog son"),
    v("disturb", "stören", "person animal", "person animal meeting concert wedding"),
    v("protect", "schützen", "adult kin name dog", "person animal forest city village"),
    v("accompany", "begleiten", "person", "person"),
    v("warn", "warnen", "person", "person"),
    v("observe", "beobachten", "person animal", "person animal"),
    v("feed fed fed", "füttern füttert fütterte gefüttert", "person", "animal"),
    v("hunt", "jagen", "hunter king wolf lion dog farmer", "duck wolf bear lion bird elephant"),
    v("catch caught caught", "fangen fängt fing gefangen", "person dog cat wild",
      "mouse ball thief duck bird"),
    v("throw threw thrown", "werfen wirft warf geworfen", "person",
      "ball coin pencil apple hat key"),
    v("play", "spielen", "person", "song game"),
    v("solve", "lösen", "person", "puzzle"),
    v("learn", "lernen", "person", "learning poem song game rule"),
    v("answer", "beantworten", "person", "question letter message"),
    v("forget forgot forgotten", "vergessen vergisst vergaß vergessen", "person",
      "learning thing name plan error wedding rule tale -device", aspect="event"),
    v("celebrate", "feiern feiert feierte gefeiert", "person", "wedding party"),
    v("plan", "planen", "person", "occasion garden"),
    v("change", "ändern ändert änderte geändert", "person",
      "plan rule contract report sentence decision"),
    v("call", "an|rufen ruft rief angerufen", "person", "person"),
    v("invite", "ein|laden lädt lud eingeladen", "person", "person"),
    v("pick|up", "ab|holen", "adult kin name", "person luggage letter postcard gift"),
    v("turn|on", "ein|schalten", "person", "device -clock -telephone"),
    v("turn|off", "aus|schalten", "person", "device -clock -telephone"),
    v("throw|away threw thrown", "weg|werfen wirft warf weggeworfen", "person",
      "thing clothes -loan food"),
    v("bring|back brought brought", "zurück|bringen bringt brachte zurückgebracht", "person",
      "loan thing -fragile"),
    v("tidy|up", "auf|räumen", "person", "room shelf desk cupboard"),
    v("take|along took taken", "mit|nehmen nimmt nahm mitgenommen", "person",
      "person luggage loan dog"),
    v("bring|along brought brought", "mit|bringen bringt brachte mitgebracht", "person",
      "person luggage thing dog food drink"),
    v("prepare", "vor|bereiten bereitet bereitete vorbereitet", "person",
      "occasion exam game"),
    v("lock", "ab|schließen schließt schloss abgeschlossen", "person",
      "door gate house suitcase bicycle garage"),
    v("hang|up hung hung", "auf|hängen", "person", "hanging coat jacket hat"),
    v("unpack", "aus|packen", "person", "luggage gift book"),
    v("cancel", "ab|sagen", "adult kin name", "occasion exam game"),
    v("accept", "an|nehmen nimmt nahm angenommen", "person", "gift proposal contract"),
    v("reject", "ab|lehnen", "person", "proposal contract gift"),
    v("copy", "ab|schreiben schreibt schrieb abgeschrieben", "learner youngster name",
      "sentence poem word letter report article story"),
    v("look+at", "an|sehen sieht sah angesehen", "person", "art animal map film clothes -song"),
)  # fmt: skip

# A dative object: Der Mann hilft der Frau.
v = _frame("dative")
DATIVE = (
    v("help", "helfen hilft half geholfen", "person", "person animal"),
    v("thank", "danken", "person", "person"),
    v("follow", "folgen", "person animal", "person animal", aux="sein"),
    v("trust", "vertrauen vertraut vertraute vertraut", "person", "person", aspect="state"),
    v("congratulate", "gratulieren", "person", "person"),
    v("obey", "gehorchen gehorcht gehorchte gehorcht", "youngster soldier dog cat horse waiter",
      "person -youngster"),
    v("forgive forgave forgiven", "verzeihen verzeiht verzieh verziehen", "person", "person",
      aspect="event"),
    v("contradict", "widersprechen widerspricht widersprach widersprochen", "person", "person"),
    v("listen+to", "zu|hören", "person", "person"),
    v("agree+with", "zu|stimmen", "person", "person", aspect="event"),
    v("escape", "entkommen entkommt entkam entkommen", "animal criminal", "person wild pet",
      aux="sein", aspect="event"),
    v("belong+to", "gehören", "thing vehicle house clothes furniture castle -public", "person",
      aspect="state"),
    v("resemble", "ähneln ähnelt ähnelte geähnelt", "person", "person", aspect="state"),
)  # fmt: skip

# A receiver in the dative before the accusative object: Der Mann gab dem Kind einen Apfel.
v = _frame("ditransitive")
DITRANSITIVE = (
    v("give gave given", "geben gibt gab gegeben", "person", "thing food clothes drink",
      dative="person"),
    v("show showed shown", "zeigen", "person", "thing sight clothes animal house", dative="person"),
    v("send sent sent", "schicken", "person", "mail gift flower picture photo contract bill"),
    v("bring brought brought", "bringen bringt brachte gebracht", "person",
      "thing food clothes drink bill"),
    v("lend lent lent", "leihen leiht lieh geliehen", "person", "loan tool"),
    v("tell told told", "erzählen", "person", "story tale"),
    v("offer", "an|bieten bietet bot angeboten", "person", "food drink seat"),
    v("promise", "versprechen verspricht versprach versprochen", "person",
      "gift answer ring trip book letter"),
    v("hand", "reichen", "person", "tool dishes bottle coin key ball spoon"),
)  # fmt: skip

# The same with "to" in English: Der Lehrer erklärte dem Kind die Aufgabe.
v = _frame("transfer")
TRANSFER = (
    v("explain", "erklären", "person", "matter official map machine -answer -song game"),
    v("recommend", "empfehlen empfiehlt empfahl empfohlen", "person",
      "work dish sight wine restaurant hotel doctor"),
    v("return", "zurück|geben gibt gab zurückgegeben", "person", "loan tool key ring ball coin"),
    v("introduce", "vor|stellen", "person", "person -neutral"),
)  # fmt: skip

# A prepositional object with a case of its own: Der Mann wartet auf den Bus.
v = _frame("prepositional")
PREPOSITIONAL = (
    v("wait", "warten", "person dog", "person bus train answer letter message", prep="for auf acc"),
    v("think thought thought", "denken denkt dachte gedacht", "person",
      "person exam wedding trip problem city", prep="of an acc"),
    v("talk", "sprechen spricht sprach gesprochen", "person", "topic film person text -bill -form",
      prep="about über acc"),
    v("dream", "träumen", "person", "person trip wedding island house car dog lion",
      prep="of von dat"),
    v("laugh", "lachen", "person", "story film idea mistake monkey picture joke",
      prep="about über acc"),
    v("ask", "bitten bittet bat gebeten", "person", "answer pencil water coin bread chair",
      prep="for um acc"),
    v("fight fought fought", "kämpfen", "fighter", "fighter bear lion thief wolf",
      prep="against gegen acc"),
    v("participate", "teil|nehmen nimmt nahm teilgenommen", "person",
      "meeting concert trip wedding game", prep="in an dat"),
    v("believe", "glauben", "person", "plan idea friend dream president", prep="in an acc",
      aspect="state"),
)  # fmt: skip

# A reflexive pronoun in German only: Der Mann rasiert sich.
v = _frame("reflexive")
REFLEXIVE = (
    v("hurry", "beeilen", "person"),
    v("rest", "aus|ruhen", "person animal"),
    v("relax", "entspannen entspannt entspannte entspannt", "person"),
    v("shave", "rasieren", "man brother father uncle soldier king Peter Paul Martin Stefan"),
    v("get+dressed got gotten", "an|ziehen zieht zog angezogen", "person"),
    v("sit+down sat sat", "setzen", "person", aspect="routine"),
    v("get+lost got gotten", "verlaufen verläuft verlief verlaufen", "person", aspect="event"),
)
v = _frame("reflexive prepositional")
REFLEXIVE_PREPOSITIONAL = (
    v("remember", "erinnern erinnert erinnerte erinnert", "person",
      "person trip wedding film city concert dream joke", prep="- an acc", aspect="state"),
    v("look+forward", "freuen", "person", "occasion gift game film", prep="to auf acc"),
    v("complain", "beschweren", "person", "noise weather person bill rule film",
      prep="about über acc"),
    v("apologize", "entschuldigen", "person", "person", prep="to bei dat"),
    v("concentrate", "konzentrieren", "person", "puzzle exam text game question -bill",
      prep="on auf acc"),
    v("rely", "verlassen verlässt verließ verlassen", "person", "person plan", prep="on auf acc",
      aspect="state"),
    v("fall+in_love fell fallen", "verlieben", "adult name",
      "prince princess singer actress actor name waiter nurse", prep="with in acc", aspect="event"),
)  # fmt: skip

# Somewhere (dative): Die Lampe steht auf dem Tisch.
v = _frame("location")
LOCATION = (
    v("sit sat sat", "sitzen sitzt saß gesessen", "person pet"),
    v("stand stood stood", "stehen steht stand gestanden", "person upright"),
    v("lie lay lain", "liegen liegt lag gelegen", "flat dog cat youngster"),
    v("play", "spielen", "youngster dog cat"),
    v("wait", "warten", "person"),
    v("sleep slept slept", "schlafen schläft schlief geschlafen", "person pet"),
)

# Something to somewhere (accusative): Der Mann stellt die Lampe auf den Tisch. Not verstecken,
# which has the dative.
v = _frame("placement")
PLACEMENT = (
    v("lay laid laid", "legen", "person", "flat"),
    v("place", "stellen", "person", "upright"),
    v("hang hung hung", "hängen", "person", "hanging"),
)

# To somewhere: Der Mann geht zum Bahnhof.
v = _frame("motion")
MOTION = (
    v("go went gone", "gehen geht ging gegangen", "person", aux="sein"),
    v("run ran run", "laufen läuft lief gelaufen", "person dog cat", aux="sein"),
    v("drive drove driven", "fahren fährt fuhr gefahren", "adult kin name", aux="sein"),
    v("come came come", "kommen kommt kam gekommen", "person", aux="sein"),
    v("return", "zurück|kehren", "person", aux="sein"),
)

# That something is so: Der Mann sagt, dass ...
v = _frame("clausal")
CLAUSAL = (
    v("say said said", "sagen", "person", aspect="state"),
    v("believe", "glauben", "person", aspect="state"),
    v("know knew known", "wissen weiß wusste gewusst", "person", aspect="state"),
    v("hope", "hoffen", "person", aspect="state"),
    v("claim", "behaupten", "person", aspect="state"),
    v("notice", "bemerken", "person", aspect="state"),
    v("fear", "fürchten", "person", aspect="state"),
)

# To do something: Der Mann versucht, ...
v = _frame("control")
CONTROL = (
    v("try", "versuchen", "person"),
    v("begin began begun", "beginnen beginnt begann begonnen", "person"),
    v("promise", "versprechen verspricht versprach versprochen", "person"),
    v("forget forgot forgotten", "vergessen vergisst vergaß vergessen", "person", aspect="event"),
    v("plan", "planen", "person"),
    v("decide", "beschließen beschließt beschloss beschlossen", "person", aspect="event"),
    v("hope", "hoffen", "person"),
)

# To find something out: Die Frau fragt, ob ...
v = _frame("interrogative")
INTERROGATIVE = (
    v("ask", "fragen", "person"),
    v("know knew known", "wissen weiß wusste gewusst", "person", aspect="state"),
)
COST = _frame("measure")("cost cost cost", "kosten", "thing", aspect="state")

VERBS: tuple[Verb, ...] = (
    *INTRANSITIVE,
    *TRANSITIVE,
    *DATIVE,
    *DITRANSITIVE,
    *TRANSFER,
    *PREPOSITIONAL,
    *REFLEXIVE,
    *REFLEXIVE_PREPOSITIONAL,
    *LOCATION,
    *PLACEMENT,
    *MOTION,
    *CLAUSAL,
    *CONTROL,
    *INTERROGATIVE,
    COST,
)
