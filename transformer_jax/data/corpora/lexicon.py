"""The lexicon of ``phrasebook`` except nouns and adjectives, as tables.

English has American spelling, except *travelling*, as in the lecture.
"""

__all__ = [
    "ADVERBS",
    "COUNTRIES",
    "DETERMINERS",
    "MONTHS",
    "NAMES",
    "NUMBERS",
    "TOWNS",
    "VERBS",
    "WEEKDAYS",
]


# portuguese | english | who | whom. Who: h a person, a an animal, t a thing, v transport, b a
# building. Whom: "class class", or "preposition/preposition: class", or "-" for nobody. Marks: "="
# never "is doing"; "~" a lasting state; "!" undesirable; "*" the object determines the meaning of
# the verb; "+" a journey to a place, which is planned; "@" a place follows.
VERBS = """
comprar | buy | h | fruit dish food drink clothes furniture text device thing vehicle mango
vender | sell | h | fruit dish clothes furniture text device thing vehicle instrument
comer | eat | ha | fruit dish food mango
beber | drink | ha | drink
descascar | peel | h | fruit mango
lavar | wash | h | fruit clothes vehicle plate
provar | taste | h | dish food drink meal
preparar | prepare | h | dish meal
vestir | put on | h | clothes
usar | use | h | device
procurar | look for | h | someone person clothes text thing
encontrar | find | h | animal clothes text thing
esquecer | forget | h | !text thing clothes idea
trazer | bring | h | dish text thing clothes
guardar | keep | h | text thing letter
roubar | steal | h | !clothes device thing vehicle
quebrar | break | h | !furniture device plate
consertar | repair | h | furniture device vehicle bench
limpar | clean | h | furniture device building room
pintar | paint | h | furniture building bench room
vigiar | guard | h | building vehicle
abrir | open | h | building
fechar | close | h | building
ler | read | h | text letter
escrever | write | h | text letter
corrigir | correct | h | text idea
traduzir | translate | h | text
copiar | copy | h | text idea
enviar | send | h | text letter
receber | receive | h | text letter thing
explicar | explain | h | idea
entender | understand | h | =idea
discutir | discuss | h | idea show
ouvir | hear | h | =someone person animal instrument
ver | see | h | =someone person animal flower tree show building
visitar | visit | h | person trade building place
ajudar | help | h | someone person trade
chamar | call | h | someone person trade
esperar | wait for | h | someone person trade
seguir | follow | h | someone person animal
pagar | pay | h | trade
conduzir | drive | h | vehicle
estacionar | park | h | vehicle
estudar | study | h | subject
aprender | learn | h | subject
ensinar | teach | h | subject
colher | pick | h | fruit flower
plantar | plant | h | flower tree
desenhar | draw | h | animal flower tree building
alimentar | feed | h | animal
fotografar | photograph | h | animal flower tree building place
afinar | tune | h | instrument
gostar | like | h | =~de/: fruit animal show instrument subject text
assistir | watch | h | a/: show
entrar | go | h | em/into: building
sair | come | h | de/out of: building
ir | go | ha | +a/to: building place
voltar | return | h | +a/to: building place town country
viajar | travel | h | +a/to: town country
viajar | travel | h | -
chegar | arrive | h | +a/in: town country
morar | live | h | =~em/in: town country
trabalhar | work | h | em/in: town country
telefonar | make a call | h | -
falar | talk | h | com/to: someone person trade
dormir | sleep | ha | -
correr | run | ha | -
trabalhar | work | h | -
cozinhar | cook | h | -
dançar | dance | h | -
cantar | sing | h | -
nadar | swim | ha | -
descansar | rest | ha | -
brincar | play | ha | -
dormir | sleep | ha | @-
descansar | rest | ha | @-
brincar | play | ha | @-
colocar | put | h | @text thing clothes fruit toss
deixar | leave | h | @text thing clothes
esconder | hide | h | @text thing
cair | fall | t | -
desaparecer | disappear | t | -
chegar | arrive | hv | -
partir | leave | v | -
parar | stop | v | -
abrir | open | b | -
fechar | close | b | -
fazer | make | h | *dish
tocar | play | h | *instrument drums
tocar | touch | h | *furniture
perder | miss | h | !*transport
perder | lose | h | !*thing clothes
tomar | drink | h | *drink
tomar | take | h | *transport remedy
jogar | play | h | *sport
jogar | throw | h | *toss
tirar | take | h | *photo
tirar | take off | h | *clothes
rasgar | tear | h | !sleeve
dobrar | fold | h | sleeve clothes
costurar | sew | h | sleeve clothes
trabalhar | work | h | em/at: bank
entrar | go | h | em/into: bank
assaltar | rob | h | !bank
sentar | sit | h | em/on: bench
acender | light | h | candle
apagar | blow out | h | candle
içar | hoist | h | sail
baixar | lower | h | sail
conectar | connect | h | cable
cortar | cut | h | cable tree fruit
contornar | sail around | h | cape
avistar | sight | h | cape
embaralhar | shuffle | h | card
distribuir | deal | h | card
carregar | charge | h | battery
trocar | replace | h | battery device
regar | water | h | plant flower
podar | prune | h | plant tree
aprovar | approve | h | floorplan text
secar | dry | h | plate clothes
servir | serve | h | meal dish
varrer | sweep up | h | leaf
imprimir | print | h | sheet text
descansar | rest | h | em/in: hammock
dormir | sleep | h | em/in: hammock
lançar | cast | h | net
puxar | pull | h | net
"""

# tense | portuguese | english; "all" suits present, past and future. Entries of "pres" and "past"
# show the tense by themselves; "long" ones also suit lasting states.
ADVERBS = """
all | de manhã | in the morning
all | à noite | at night
all | à tarde | in the afternoon
pres | todos os dias | every day
pres | toda semana | every week
pres | todos os meses | every month
pres | todos os anos | every year
past | ontem | yesterday
past | ontem à noite | last night
past | anteontem | the day before yesterday
past | na semana passada | last week
long past | no mês passado | last month
long past | no ano passado | last year
fut | amanhã | tomorrow
fut | depois de amanhã | the day after tomorrow
fut | na próxima semana | next week
long fut | no próximo mês | next month
long fut | no próximo ano | next year
long fut | em breve | soon
prog | agora | now
prog | neste momento | right now
"""

DETERMINERS = """
o a os as | the the | 6
um uma - - | a - | 4
este esta estes estas | this these | 1.5
aquele aquela aqueles aquelas | that those | 1.5
nosso nossa nossos nossas | our our | 1
meu minha meus minhas | my my | 2
seu sua seus suas | your your | 1
- - muitos muitas | - many | 2
"""

NAMES = {
    "m": "Lucas João Pedro Rafael Miguel Tiago Bruno Daniel Gabriel André Carlos",
    "f": "Ana Maria Beatriz Sofia Helena Laura Júlia Marta Inês Teresa Isabel",
}

TOWNS = (
    "o Rio:Rio, o Porto:Porto, o Recife:Recife, Lisboa:Lisbon, Coimbra:Coimbra, Londres:London, "
    "Paris:Paris, Roma:Rome, Madri:Madrid, Berlim:Berlin, Brasília:Brasilia, Salvador:Salvador, "
    "Curitiba:Curitiba, Tóquio:Tokyo, Dallas:Dallas, Nova York:New York, Praga:Prague, "
    "Viena:Vienna, Atenas:Athens, Milão:Milan"
)
COUNTRIES = (
    "o Brasil:Brazil, Portugal:Portugal, a França:France, a Itália:Italy, a Espanha:Spain, "
    "a Alemanha:Germany, o Japão:Japan, o Canadá:Canada, o México:Mexico, a Grécia:Greece, "
    "a Índia:India, o Egito:Egypt, a China:China, o Peru:Peru, a Suíça:Switzerland, Angola:Angola, "
    "Cuba:Cuba"
)
MONTHS = (
    "Janeiro:January, Fevereiro:February, Março:March, Abril:April, Maio:May, Junho:June, "
    "Julho:July, Agosto:August, Setembro:September, Outubro:October, Novembro:November, "
    "Dezembro:December"
)
WEEKDAYS = (
    "a segunda-feira:Monday, a terça-feira:Tuesday, a quarta-feira:Wednesday, "
    "a quinta-feira:Thursday, a sexta-feira:Friday, o sábado:Saturday, o domingo:Sunday"
)
NUMBERS = (
    "dois:two três:three quatro:four cinco:five seis:six sete:seven oito:eight nove:nine dez:ten "
    "onze:eleven doze:twelve treze:thirteen catorze:fourteen quinze:fifteen dezesseis:sixteen "
    "dezessete:seventeen dezoito:eighteen dezenove:nineteen vinte:twenty trinta:thirty "
    "quarenta:forty cinquenta:fifty sessenta:sixty setenta:seventy oitenta:eighty noventa:ninety"
)
